#include "transport/kit/carried_endpoint.h"

#include <utility>

namespace hmc::kit {

Status CarriedEndpoint::create_carrier(const Carriers& carriers, const PeerDomain& peer) {
  HMC_ASSIGN(carrier_, CarrierLink::create(carriers, peer, *this));
  return {};
}

Result<Blob> CarriedEndpoint::address() {
  HMC_ASSIGN(Blob own, own_address());
  return carrier_->address(std::move(own));
}

Status CarriedEndpoint::connect(const Blob& peer_address, Completion* done) {
  HMC_TRY(begin_connect(done));
  auto theirs = carrier_->connect(peer_address, this);
  const Status outcome = theirs.ok() ? accept(std::move(*theirs)) : theirs.status();
  if (!outcome.ok()) {
    abandon_connect();
    return outcome;
  }
  accepted_ = true;
  if (carrier_outcome_) complete(*std::exchange(carrier_outcome_, std::nullopt));
  return {};
}

// Perhaps from within connect(), which has more to do then.
void CarriedEndpoint::complete(Status status) noexcept {
  if (!accepted_) {
    carrier_outcome_ = std::move(status);
    return;
  }
  if (status.ok() && connecting()) on_carrier_ready();
  connected(status);
}

Status CarriedEndpoint::signal(ByteSpan head, ByteSpan body) {
  if (!ready()) [[unlikely]]
    return not_ready();
  HMC_TRY(check_signal(head.size() + body.size()));  // of carriers one may take more than another
  if (!waiting_.empty()) return Status(Code::would_block, "attached signals wait for room");
  return carrier_->signal_user(head, body);
}

bool CarriedEndpoint::send(ByteSpan signal, std::uint64_t) { return carrier_->signal_user(signal, {}).ok(); }

void CarriedEndpoint::on_own_signal(ByteSpan signal) {
  if (stopped()) return;
  if (const Status taken = on_message(signal); !taken.ok()) return fail(taken);
  engine_->kick();
}

}  // namespace hmc::kit
