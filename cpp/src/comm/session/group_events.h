// GroupEvents: what the collective layer receives from a Context: control messages 200..255 and ended peers. Owned by ContextImpl.
// Engine lock held.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/peer_state.h"

namespace hmc {

class GroupEvents {
 public:
  using MessageHandler = std::function<void(PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds)>;
  using PeerWatcher = std::function<void(PeerState& peer, const Status& reason)>;

  // Receives the held messages immediately. Null: messages are held again.
  void set_message_handler(MessageHandler handler);
  // Called when a peer is lost or closed, after its operations ended.
  void watch_peers(PeerWatcher watcher);
  // Called when the Context begins to close, before its peers do: messages to them still go out.
  void watch_close(std::function<void()> watcher);

  // A peer that sends more than is held for it without a handler fails.
  void deliver(PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds);
  void peer_gone(PeerState& peer, const Status& reason) const;
  void context_closes() const;
  void end();

 private:
  struct HeldMessage {
    std::weak_ptr<PeerState> peer;
    MessageType type;
    Bytes payload;
    std::vector<UniqueFd> fds;
  };
  // What is held of one peer.
  struct Held {
    std::size_t messages = 0;
    std::size_t bytes = 0;
  };
  // Null: the peer is beyond its limits.
  [[nodiscard]] Held* room_for(PeerState& peer, std::size_t bytes);

  MessageHandler handler_;
  std::deque<HeldMessage> held_;  // came before the handler was set
  std::map<std::weak_ptr<PeerState>, Held, std::owner_less<>> held_of_;
  std::vector<PeerWatcher> watchers_;
  std::vector<std::function<void()>> close_watchers_;
};

}  // namespace hmc
