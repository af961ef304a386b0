// Doorbell: wakes the engines of both sides of a channel that sleep while the other writes.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.h"
#include "hmc/status.h"
#include "progress/engine.h"
#include "transport/shm/layout.h"

namespace hmc::shm {

// A datagram socket: every call on one can be told not to block, whatever the peer makes of the descriptor's flags, and what the
// peer does to its end does not make this one readable for good. All calls with the engine lock held.
class Doorbell final : public FdHandler {
 public:
  Status open();  // idempotent
  Result<UniqueFd> end_for_peer() const;
  // `passed`: the peer's own end_for_peer(); `armed`: of the channel that the peer reads. Errors: protocol (not a Unix socket).
  Status connect(Engine& engine, const UniqueFd& passed, std::atomic<std::uint32_t>& armed);
  // After a seq_cst store that the peer is to see. A peer that is awake costs a load.
  void ring() noexcept {
    if (armed_->load(std::memory_order_seq_cst) != 0) [[unlikely]]
      wake_peer();
  }
  // Closes all descriptors, with or without connect().
  void close(Engine& engine) noexcept;

  void on_ready(std::uint32_t events) override;

 private:
  void wake_peer() noexcept;

  UniqueFd ours_;
  UniqueFd given_;  // the other end of ours, until connect()
  UniqueFd peers_;
  std::atomic<std::uint32_t>* armed_ = nullptr;
  bool watched_ = false;
};

}  // namespace hmc::shm
