// What waits to be sent, per peer.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/pollable.h"
#include "comm/messages/credit.h"
#include "comm/messages/operations.h"
#include "comm/wire/messages.h"

namespace hmc::messaging {

class Sends;

// Credit and queues of one peer. Engine lock held.
struct Lane {
  std::shared_ptr<PeerState> peer;  // null once it has ended: what it left is kept no longer than others keep the peer
  std::weak_ptr<PeerState> departed;
  std::uint64_t departure = 0;  // in order; 0 while it lives
  SentCredit sent;
  HeldCredit held;
  std::uint64_t put_back = 0;  // announcements that were matched and are without a receive again; they hold no credit
  bool waiting_for_ready = false;
  std::deque<Bytes> signals;                         // answers, finishes, credit: before any send
  std::deque<std::shared_ptr<Operation>> transfers;  // puts and gets that found no room
  std::deque<std::shared_ptr<SendOperation>> sends;  // in the order they were posted
  // Matched, and waiting for the endpoint between their devices or for a stream: a receive with what was announced or came, a send
  // with its answer.
  struct Unrouted {
    std::shared_ptr<Operation> operation;
    std::variant<Announce, Answer, std::unique_ptr<Unexpected>> said;
  };
  std::vector<Unrouted> unrouted;
  std::set<std::uint32_t> left;  // scopes that the peer's process has closed and this one has not
  [[nodiscard]] bool idle() const noexcept { return signals.empty() && transfers.empty() && sends.empty() && unrouted.empty(); }
  // Signals to the peer are still sent: it is ready, or the two are closing.
  [[nodiscard]] bool carries() const noexcept { return peer != nullptr && peer->carries(); }
  // A send may go at once: nothing comes before it.
  [[nodiscard]] bool open() const noexcept {
    return peer != nullptr && peer->phase() == PeerPhase::ready && !peer->fenced() && idle();
  }
  [[nodiscard]] std::shared_ptr<PeerState> owner() const noexcept { return peer != nullptr ? peer : departed.lock(); }
  // ok: sent. would_block: queue it. unsupported: too large or out of payload credit, announce it.
  Status send_eager(const Head& head, const MemoryView& view);
};

// The peer's process has closed the Communicator of `scope`, and all that it sent there has arrived.
[[nodiscard]] inline bool has_left(const PeerState& peer, std::uint32_t scope) noexcept {
  return peer.lane != nullptr && !peer.lane->left.empty() && peer.lane->left.contains(scope);
}
[[nodiscard]] Status left_status(const PeerState& peer, std::uint32_t rank);

// The Lanes of a Context, polled while one has something to send. Owned by MessengerImpl. Engine lock held.
class Lanes final : public Pollable {
 public:
  Lanes(Engine& engine, Sends& sends) noexcept : engine_(engine), sends_(sends) {}

  Lane& of(PeerState& peer);
  [[nodiscard]] Lane* find(const PeerState* peer) noexcept {
    const auto found = lanes_.find(peer);
    return found != lanes_.end() ? &found->second : nullptr;
  }
  [[nodiscard]] const Lane* find(const PeerState* peer) const noexcept { return const_cast<Lanes*>(this)->find(peer); }
  [[nodiscard]] auto& all() noexcept { return lanes_; }
  [[nodiscard]] const auto& all() const noexcept { return lanes_; }
  void clear();

  // A signal, before any send that waits.
  void emit(Lane& lane, Bytes signal);
  void consumed(Lane& lane, std::uint64_t payload);
  // A message that was taken from the unexpected ones: its credit is free.
  void unstashed(const Unexpected& message);
  void give_credit(Lane& lane);
  void on_credit(Lane& lane, ByteSpan signal);

  void want_poll();
  bool poll() override;
  bool arm() override;

 private:
  Engine& engine_;
  Sends& sends_;
  std::unordered_map<const PeerState*, Lane> lanes_;
  bool polled_ = false;
};

}  // namespace hmc::messaging
