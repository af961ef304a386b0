// What the endpoints of one shm transport share. Outlives the transport while endpoints do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "progress/engine.h"
#include "transport/shm/layout.h"
#include "transport/shm/region.h"

namespace hmc::shm {

struct Shared {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<RegionTable> regions = std::make_shared<RegionTable>();
  Sizes sizes;
  bool ptrace_wanted = true;                   // HMC_SHM_PTRACE
  bool ptrace_refused = false;                 // the last living peer that was tried could not be read
  std::uint64_t probe_word = 0;                // random; peers read it to prove that they can
  std::array<std::byte, max_signal> incoming;  // the signal being delivered, out of its sender's reach
};

}  // namespace hmc::shm
