// What a peer still has to post: operations that found no room, payload notifications out of credit, fences.
#pragma once

#include <cstdint>
#include <memory>

#include "hmc/status.h"

namespace hmc {

class PeerImpl;

// Engine lock held throughout.
class PendingOp {
 public:
  enum class Outcome : std::uint8_t {
    posted,     // nothing left to do here (also when it failed: it has told its owner)
    blocked,    // no room now
    waits,      // for an event that has the queue posted again
    no_credit,  // the peer must consume payload notifications first
  };
  virtual ~PendingOp() = default;
  virtual Outcome post() = 0;
  // The peer ended before it was posted.
  virtual void abandon(const Status& reason) = 0;
  // A fence is released by PeerImpl instead of posted.
  [[nodiscard]] virtual bool is_fence() const noexcept { return false; }
  // It is abandoned when this side begins to close: a message, of which nothing was sent. The rest is posted before the goodbye.
  [[nodiscard]] virtual bool ends_at_close() const noexcept { return false; }
  // Its call returned ok without a Work: only close() can report that it was lost.
  [[nodiscard]] virtual bool is_unreported() const noexcept { return false; }
};

}  // namespace hmc
