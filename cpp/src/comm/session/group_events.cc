#include "comm/session/group_events.h"

#include <utility>

namespace hmc {
namespace {

// Of one peer.
constexpr std::size_t max_held_messages = 4096;
constexpr std::size_t max_held_bytes = 16 << 20;

}  // namespace

void GroupEvents::set_message_handler(MessageHandler handler) {
  handler_ = std::move(handler);
  if (!handler_) return;
  held_of_.clear();
  for (auto& held : std::exchange(held_, {})) {
    if (const auto peer = held.peer.lock(); peer && handler_) handler_(*peer, held.type, held.payload, std::move(held.fds));
  }
}

void GroupEvents::watch_peers(PeerWatcher watcher) { watchers_.push_back(std::move(watcher)); }

void GroupEvents::watch_close(std::function<void()> watcher) { close_watchers_.push_back(std::move(watcher)); }

void GroupEvents::deliver(PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (handler_) {
    handler_(peer, type, payload, std::move(fds));
  } else if (Held* const held = room_for(peer, payload.size()); held != nullptr) {
    ++held->messages;
    held->bytes += payload.size();
    held_.push_back({peer.shared_from_this(), type, Bytes(payload.begin(), payload.end()), std::move(fds)});
  } else {
    peer.fail(Status(Code::protocol, peer.describe() + " sends group messages, and no group was formed here"));
  }
}

GroupEvents::Held* GroupEvents::room_for(PeerState& peer, std::size_t bytes) {
  auto found = held_of_.find(peer.weak_from_this());
  if (found == held_of_.end()) {  // an occasion to discard what peers left that are no more
    std::erase_if(held_, [](const HeldMessage& each) { return each.peer.expired(); });
    std::erase_if(held_of_, [](const auto& item) { return item.first.expired(); });
    found = held_of_.emplace(peer.weak_from_this(), Held{}).first;
  }
  Held& held = found->second;
  const bool fits = held.messages < max_held_messages && bytes <= max_held_bytes - held.bytes;
  return fits ? &held : nullptr;
}

// A watcher may add watchers.
void GroupEvents::peer_gone(PeerState& peer, const Status& reason) const {
  for (const auto& watcher : std::vector(watchers_)) watcher(peer, reason);
}

void GroupEvents::context_closes() const {
  for (const auto& watcher : std::vector(close_watchers_)) watcher();
}

void GroupEvents::end() {
  handler_ = nullptr;
  watchers_.clear();
  close_watchers_.clear();
  held_.clear();
  held_of_.clear();
}

}  // namespace hmc
