// The memory that a library knows; shared by memory.cc and ipc.cc.
#pragma once

#include <map>
#include <mutex>

#include "memory.h"

namespace hmc::sim {

struct PinnedRange {
  std::size_t bytes;
  int device;  // that was current when it was pinned
  std::uint64_t id;
  bool owned;  // allocated here, not only registered
};

struct Registry {
  std::mutex mutex;  // of everything below; no stream is waited for while it is held
  std::map<std::uintptr_t, AllocationRef> allocations;
  std::map<std::uintptr_t, PinnedRange> pinned;
  std::map<int, std::size_t> used;  // bytes per device, without imported memory
  // The allocation that covers `address`, or null.
  AllocationRef find(std::uintptr_t address);
};
Registry& registry();

}  // namespace hmc::sim
