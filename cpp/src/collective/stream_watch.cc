#include "collective/stream_watch.h"

#include <utility>

namespace hmc {

Result<bool> all_reached(const StreamPoints& points) {
  for (const auto& point : points) {
    if (!point) continue;
    HMC_ASSIGN(const bool reached, point->reached());
    if (!reached) return false;
  }
  return true;
}

void StreamWatch::start() {
  self_ = shared_from_this();
  engine_->add(*this);
  engine_->kick();
}

bool StreamWatch::poll() {
  const auto reached = all_reached(points_);
  if (reached.ok() && !*reached) return false;
  engine_->remove(*this);
  const auto self = std::exchange(self_, nullptr);
  done_(reached.status());
  return true;
}

}  // namespace hmc
