// What the regions and links of one ipc transport share.
#pragma once

#include <memory>
#include <vector>

#include "progress/engine.h"
#include "progress/worker.h"
#include "transport/kit/served_regions.h"

namespace hmc::ipc {

// Somebody whose peer knows local memory.
class Announcer {
 public:
  virtual void forget(const LocalRegion& region) = 0;

 protected:
  ~Announcer() = default;
};

// Engine lock held, but for `worker`.
struct Shared {
  explicit Shared(std::shared_ptr<Engine> of) noexcept : engine(std::move(of)) {}

  const std::shared_ptr<Engine> engine;
  const std::shared_ptr<ServedRegions> served = std::make_shared<ServedRegions>();
  std::vector<Announcer*> announcers;
  Worker worker;  // maps and pins what peers announce; its tasks take no engine lock
};

}  // namespace hmc::ipc
