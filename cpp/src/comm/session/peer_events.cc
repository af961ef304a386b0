#include "comm/session/peer_events.h"

#include <algorithm>
#include <utility>

#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {

void PeerEvents::joined(std::shared_ptr<PeerImpl> peer) {
  const ContextOptions& options = context_.options();
  if (!options.on_joined && !options.on_left) return;
  auto& visits = visits_[peer->identity().context_id];
  visits.push_back({std::move(peer), false, false, {}});
  report(visits);
}

void PeerEvents::left(const PeerImpl& peer, const Status& reason) {
  const auto found = visits_.find(peer.identity().context_id);
  if (found == visits_.end()) return;
  auto& visits = found->second;
  const auto visit = std::ranges::find(visits, &peer, [](const Visit& each) { return each.peer.get(); });
  if (visit == visits.end()) return;
  visit->over = true;
  visit->outcome = reason.code() == Code::closed ? Status() : reason;
  report(visits);
  if (visits.empty()) visits_.erase(found);
}

void PeerEvents::report(std::deque<Visit>& visits) {
  const ContextOptions& options = context_.options();
  while (!visits.empty()) {
    Visit& first = visits.front();
    if (!std::exchange(first.reported, true) && options.on_joined)
      context_.engine()->dispatch([callback = options.on_joined, peer = first.peer] { callback(Peer(peer)); });
    if (!first.over) return;
    if (options.on_left) {
      context_.engine()->dispatch(
          [callback = options.on_left, peer = std::move(first.peer), outcome = first.outcome] { callback(Peer(peer), outcome); });
    }
    visits.pop_front();
  }
}

}  // namespace hmc
