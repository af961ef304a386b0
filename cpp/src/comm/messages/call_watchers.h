// Who is told of messages of collective calls that no receive has asked for, by scope.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "comm/target.h"
#include "comm/wire/messages.h"

namespace hmc::messaging {

// Engine lock held.
class CallWatchers {
 public:
  // `watcher` null: no longer.
  void set(std::uint32_t scope, CallWatcher* watcher) {
    if (watcher == nullptr) {
      watchers_.erase(scope);
    } else {
      watchers_[scope] = watcher;
    }
  }
  void tell(const PeerState& peer, const Head& head) const {
    const auto watcher = watchers_.find(head.envelope.scope);
    if (watcher != watchers_.end()) watcher->second->on_call(peer, head.envelope, head.tag, head.call);
  }

 private:
  std::unordered_map<std::uint32_t, CallWatcher*> watchers_;
};

}  // namespace hmc::messaging
