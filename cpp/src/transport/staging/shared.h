// What the endpoints and regions of one staging transport share. Their owner's software moves the regions' bytes.
#pragma once

#include <memory>

#include "progress/engine.h"
#include "transport/kit/served_regions.h"

namespace hmc::staging {

// Engine lock held.
struct Shared {
  std::shared_ptr<Engine> engine;
  const std::shared_ptr<ServedRegions> regions = std::make_shared<ServedRegions>();
};

}  // namespace hmc::staging
