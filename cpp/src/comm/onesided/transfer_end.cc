#include "comm/onesided/transfer_end.h"

#include <string>

#include "comm/onesided/transfer_parts.h"
#include "comm/onesided/transfer_request.h"

namespace hmc {

bool TransferEnd::finish() noexcept {
  undecided_ = false;
  return !std::exchange(finished_, true);
}

Status TransferEnd::explain(const Status& status, const TransferRequest& request, const TransferParts& parts) const {
  if (status.ok()) return status;
  if (status.code() == Code::cancelled && !stopped()) return status;
  PeerImpl& peer = request.peer();
  const bool ended = peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed;
  const Status& cause = status.code() == Code::cancelled ? stop_reason_ : ended ? peer.failure() : status;
  std::string text = request.describe() + (request.is_put() ? " to " : " from ") + peer.describe();
  if (parts.slot() != nullptr) text += " by " + parts.slot()->transport().name;
  text += ": " + std::string(cause.message());
  text += !parts.posted()    ? "; nothing was written"
          : request.is_put() ? "; part of the target may have been written"
                             : "; part of the local buffer may have been written";
  return Status(cause.code(), std::move(text), cause.native());
}

}  // namespace hmc
