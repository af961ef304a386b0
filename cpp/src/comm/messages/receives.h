// Receives until they have their message, and messages that nobody has asked for yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "comm/messages/call_watchers.h"
#include "comm/messages/lanes.h"
#include "comm/messages/matching.h"
#include "comm/messages/rendezvous.h"

namespace hmc::messaging {

// What all peers that have ended may have left unread, together. Beyond that, the messages of the first to go are discarded.
inline constexpr std::uint64_t max_left_unread = 16 << 20;

// A blocking receive on its caller's stack, while nothing else is posted: the short way for small messages. It comes before every
// receive that is posted later.
struct DirectReceive {
  Address wanted;
  std::int64_t tag;
  const MemoryView& view;
  std::atomic<std::uint32_t> done{0};
  Status status;
  MessageInfo info;
  std::shared_ptr<WorkState> operation;  // what it became, when the message was announced instead

  [[nodiscard]] bool fits(const Address& from, std::int64_t its_tag) const noexcept {
    return wanted == from && tag_fits(tag, its_tag);
  }
};

using Messages = Matcher<std::shared_ptr<ReceiveOperation>, std::unique_ptr<Unexpected>>;

// Owned by MessengerImpl. Engine lock held.
class Receives {
 public:
  using Concerns = std::function<bool(const Address& wanted)>;

  Receives(MessengerImpl& messenger, ContextState& context, Lanes& lanes, Rendezvous& rendezvous);

  Result<std::shared_ptr<WorkState>> post(const Target& from, std::int64_t tag, const MemoryView& view);
  // Installs `receive` if the short way is open.
  [[nodiscard]] bool install(DirectReceive& receive) noexcept;
  // False: it is done.
  [[nodiscard]] bool withdraw(DirectReceive& receive) noexcept;
  // Its sender may still write to it.
  void on_eager(PeerState& peer, ByteSpan signal);
  void on_announce(PeerState& peer, ByteSpan signal);
  void on_withdraw(PeerState& peer, ByteSpan signal);
  void cancel(ReceiveOperation& receive);  // it is not matched
  // The message of a receive that was cancelled, for the next one that fits. Where it came nevertheless, to memory that its caller
  // had left, the next one fails so.
  void put_back(ReceiveOperation& receive);
  void put_back(PeerState& peer, std::unique_ptr<Unexpected> eager);
  // Those for which `concerns(the address that they want)`, that of the short way included.
  void end_posted(const Concerns& concerns, const Status& reason);
  // What was announced is received no more: its senders learn `to_sender`, and so do receives of `peer` whose turn it was.
  void drop_announcements(PeerState& peer, const Status& to_sender, const Status& to_receiver);
  void on_peer_gone(PeerState& peer, const Status& reason);
  void drop_departed(const PeerState* peer);
  void drop_scope(std::uint32_t scope);
  void discard_all();
  void watch_calls(std::uint32_t scope, CallWatcher* watcher);

 private:
  // To whoever waits for it; false: nobody does.
  [[nodiscard]] bool meet(PeerState& peer, Unexpected& message);
  [[nodiscard]] bool meet_eager(PeerState& peer, Lane& lane, const Head& head, ByteSpan payload);
  void accept(const std::shared_ptr<ReceiveOperation>& receive, Unexpected& message);
  void stash(const PeerState& peer, std::unique_ptr<Unexpected> message);
  void end_direct(Status status);
  // The last message of the peer in that scope has arrived.
  void on_left(PeerState& peer, Lane& lane, std::uint32_t scope);
  void end_receives_from_nobody();
  // Of peers that have ended, until the rest is within max_left_unread.
  void bound_unread();
  void discard_unread(const PeerState* peer, Lane& lane);

  MessengerImpl& messenger_;
  ContextState& context_;
  Lanes& lanes_;
  Rendezvous& rendezvous_;
  Messages matcher_;
  DirectReceive* direct_ = nullptr;
  CallWatchers watchers_;
  std::uint64_t departures_ = 0;  // peers that have ended, and groups that they have closed
};

// Missing messages of `peer` matter only before others of the same sender.
void drop_last_missing(Messages& messages, Lanes& lanes, const PeerState& peer);
// How a receive ends that a message of `peer` would have met which its sender took back when it closed.
Status sender_left(const PeerState& peer);
// How a send ends that was announced to a group that is closed here.
Status receiver_left();
// Ends posted receives that have been taken out of the table.
void end_taken(const std::vector<std::shared_ptr<ReceiveOperation>>& taken, const Status& reason);

}  // namespace hmc::messaging
