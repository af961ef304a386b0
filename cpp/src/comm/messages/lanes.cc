#include "comm/messages/lanes.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "comm/messages/sends.h"

namespace hmc::messaging {
namespace {

// Of one peer. One that keeps to its credit causes a few for each of head_credit messages before it must read again.
constexpr std::size_t max_unread_signals = 16 * head_credit;

}  // namespace

Status Lane::send_eager(const Head& head, const MemoryView& view) {
  if (!sent.has_head()) return Status(Code::would_block, "no header credit");
  const Capabilities& capabilities = peer->message_capabilities();
  const std::size_t limit = std::min(capabilities.max_signal, capabilities.eager_limit + head_bytes);
  if (view.bytes + head_bytes > limit || (!view.device.is_cpu() && view.bytes != 0) || !sent.has_payload(view.bytes)) {
    return Status(Code::unsupported, "not eager");
  }
  std::array<std::byte, head_bytes> written;
  write_head(written, Kind::eager, head);
  const ByteSpan body(static_cast<const std::byte*>(view.data), view.bytes);
  HMC_TRY(peer->signal(written, body));
  sent.spend(view.bytes);
  return {};
}

Status left_status(const PeerState& peer, std::uint32_t rank) {
  return {Code::closed, "rank " + std::to_string(rank) + " (" + peer.identity().name + ") closed the Communicator"};
}

Lane& Lanes::of(PeerState& peer) {
  if (peer.lane != nullptr) return *peer.lane;
  Lane& lane = lanes_[&peer];
  lane.peer = peer.shared_from_this();
  peer.lane = &lane;
  return lane;
}

void Lanes::emit(Lane& lane, Bytes signal) {
  if (!lane.carries()) return;
  if (lane.signals.empty()) {
    const Status sent = lane.peer->signal(signal, {});
    if (sent.code() != Code::would_block) return;  // sent, or the peer is about to be lost
  }
  if (lane.signals.size() == max_unread_signals) {
    return engine_.defer([peer = lane.peer] {
      peer->fail(Status(Code::protocol, "the peer reads no answers, and sends what asks for more than 65536 of them"));
    });
  }
  lane.signals.push_back(std::move(signal));
  want_poll();
}

void Lanes::want_poll() {
  if (!polled_) {
    polled_ = true;
    engine_.add(*this);
  }
  engine_.kick();
}

bool Lanes::poll() {
  bool moved = false;
  bool idle = true;
  for (auto& [peer, lane] : lanes_) {
    if (lane.idle()) continue;
    moved = sends_.pump(lane) || moved;
    // A lane that waits for credit alone needs no polling: the credit signal will ask for it.
    idle = idle && (lane.idle() || (!lane.carries() && lane.unrouted.empty()) ||
                    (lane.signals.empty() && lane.transfers.empty() && lane.unrouted.empty() && !lane.sent.has_head()));
  }
  if (idle && polled_) {
    polled_ = false;
    engine_.remove(*this);
  }
  return moved;
}

// Nobody rings when a stream has got somewhere.
bool Lanes::arm() {
  return std::ranges::all_of(lanes_, [](const auto& entry) { return entry.second.unrouted.empty(); });
}

void Lanes::consumed(Lane& lane, std::uint64_t payload) {
  lane.held.consume(payload);
  give_credit(lane);
}

void Lanes::unstashed(const Unexpected& message) {
  Lane& lane = *message.lane;
  if (message.put_back) {
    --lane.put_back;
    return;
  }
  lane.held.release(message.payload.size());
  consumed(lane, message.payload.size());
}

void Lanes::give_credit(Lane& lane) {
  if (const auto due = lane.held.take_due()) emit(lane, encode(*due));
}

void Lanes::on_credit(Lane& lane, ByteSpan signal) {
  const auto credit = decode_credit(signal);
  if (!credit || !lane.sent.take_back(*credit)) {
    return lane.peer->fail(Status(Code::protocol, "credit for messages that were never sent"));
  }
  if (!lane.idle()) want_poll();
}

void Lanes::clear() {
  if (std::exchange(polled_, false)) engine_.remove(*this);
  for (const auto& [peer, lane] : lanes_) {
    if (const auto owner = lane.owner()) owner->lane = nullptr;
  }
  lanes_.clear();
}

}  // namespace hmc::messaging
