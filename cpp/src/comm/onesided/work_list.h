// WorkList: every unfinished put, get and batch with one peer. Owned by PeerImpl. Engine lock held.
#pragma once

#include <functional>

#include "hmc/status.h"
#include "transport/transport.h"

namespace hmc {

class TransferWork;

class WorkList {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  void link(TransferWork& work) noexcept;
  void unlink(TransferWork& work) noexcept;
  // Whether a part of one is, or will be, posted with that region.
  [[nodiscard]] bool uses(const RemoteRegion* region) const noexcept;
  // Of those that `which` selects, stops what can be stopped.
  void stop(const Status& reason, const std::function<bool(const TransferWork&)>& which) const;
  // The peer is known to live: those end that only its silence had failed.
  void decide() const;
  // The peer and its endpoints have ended: completes those whose parts were never posted.
  void abandon(const Status& reason);

 private:
  TransferWork* first_ = nullptr;
};

}  // namespace hmc
