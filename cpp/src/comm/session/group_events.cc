#include "comm/session/group_events.h"

#include <utility>

namespace hmc {
namespace {

constexpr std::size_t max_held_messages = 4096;

}  // namespace

void GroupEvents::set_message_handler(MessageHandler handler) {
  handler_ = std::move(handler);
  if (!handler_) return;
  for (auto& held : std::exchange(held_, {})) {
    if (const auto peer = held.peer.lock(); peer && handler_) handler_(*peer, held.type, held.payload, std::move(held.fds));
  }
}

void GroupEvents::watch_peers(PeerWatcher watcher) { watchers_.push_back(std::move(watcher)); }

void GroupEvents::deliver(PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (handler_) {
    handler_(peer, type, payload, std::move(fds));
  } else if (held_.size() < max_held_messages) {
    held_.push_back({peer.shared_from_this(), type, Bytes(payload.begin(), payload.end()), std::move(fds)});
  } else {
    peer.fail(Status(Code::protocol, peer.describe() + " sends group messages, and no group was formed here"));
  }
}

// A watcher may add watchers.
void GroupEvents::peer_gone(PeerState& peer, const Status& reason) const {
  for (const auto& watcher : std::vector(watchers_)) watcher(peer, reason);
}

void GroupEvents::end() {
  handler_ = nullptr;
  watchers_.clear();
  held_.clear();
}

}  // namespace hmc
