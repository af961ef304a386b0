#include "collective/world.h"

#include <algorithm>
#include <utility>

#include "collective/bootstrap.h"
#include "collective/group.h"
#include "collective/rendezvous.h"
#include "comm/session/group_events.h"

namespace hmc {
void World::attach(const std::shared_ptr<World>& world) {
  const auto lock = world->engine_->lock();
  world->context_.group_events().set_message_handler(
      [world](PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
        world->on_control(peer, type, payload, std::move(fds));
      });
  world->context_.group_events().watch_peers([world](PeerState& peer, const Status& reason) { world->on_gone(peer, reason); });
  world->context_.group_events().watch_close([world] {
    // Peers that see the Context close cannot tell whether this process has done its part in the library.
    const Status closed(Code::closed, "this process closed the Context");
    for (Group* group : std::vector<Group*>(world->groups_))
      group->running().fail_if([group](const CollectiveWork& work) { return waits_in_library(*group, work); }, closed);
  });
}

std::uint32_t World::meet(const job::Registration& process) {
  const auto known = std::ranges::find(processes_, process.id, &Process::id);
  const auto number = static_cast<std::uint32_t>(known - processes_.begin());
  if (known != processes_.end() && known->peer) return number;
  auto addresses = process.addresses;
  // Elsewhere a Unix path names something else, or nothing.
  if (!may_be_one_kernel(process.kernel, own_.kernel))
    std::erase_if(addresses, [](const auto& address) { return address.starts_with("unix:"); });
  const auto peer = process.id == own_.id ? context_.self() : context_.expect_peer(process.id, std::move(addresses), process.name);
  const bool departed = known != processes_.end();  // a Context does not come back
  if (!departed) processes_.emplace_back();
  processes_[number] = {process.id, std::make_shared<ProcessIdentity>(ProcessIdentity{process.name, process.kernel}), peer,
                        departed};
  index_.emplace(peer.get(), number);
  return number;
}

void World::add(Group& group) {
  groups_.push_back(&group);
  for (const auto& [type, breakage] : notices_.take(group.id())) {
    if (type == control_group_left) {
      group.heard_left(breakage);
    } else {
      group.heard_broken(breakage);
      if (breakage.aborts()) growths_.end(group.id(), breakage.reason);
      notices_.send(others_of(group), type, breakage);  // when it was heard, only connected peers were told
    }
  }
}

Group* World::find(std::uint64_t group_id) const noexcept {
  const auto found = std::ranges::find(groups_, group_id, &Group::id);
  return found == groups_.end() ? nullptr : *found;
}

bool World::ends_context(const Group& closed) const noexcept {
  return keeps_context(closed) && std::ranges::none_of(groups_, [](const Group* group) { return keeps_context(*group); });
}

bool World::remove(Group& group, bool context_closes) {
  std::erase(groups_, &group);
  // The other ranks of a growth that has begun get this reason, too.
  growths_.end(group.id(), Status(Code::closed, group.describe(group.local().front()) + " has closed the Communicator"));
  growths_.forget(group.id());
  shrinks_.forget(group.id());
  offers_.on_group_gone(group.id());
  release_departed();
  if (context_closes && ends_context(group)) return false;  // the other ranks see the Context close
  notices_.send_left(others_of(group), group.id(), group.scope());
  return true;
}

void World::on_control(PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  const bool open = peer.phase() != PeerPhase::closed;
  if (open && bootstrap_ && bootstrap_->on_message(peer, type, payload)) return;
  if (growths_.on_message(peer, type, payload)) return;
  const auto known = index_.find(&peer);
  if (type == control_shrink) {
    return shrinks_.on_message(peer, known == index_.end() ? std::nullopt : std::optional<std::uint32_t>(known->second), payload);
  }
  // Not of this job: a serving peer of the same Context. Messages of ranks that are ahead may come before the table of the job.
  const bool may_be_early = type == control_segment || type == control_group_broken || type == control_group_left;
  if (known == index_.end() && !(processes_.empty() && may_be_early)) return;
  if (type == control_process_lost) {
    read_lost(payload);
  } else if (type == control_group_broken) {
    const auto breakage = job::decode_breakage(payload);
    if (breakage) broke(*breakage);
  } else if (type == control_group_left) {
    const auto breakage = job::decode_breakage(payload);
    Group* const group = breakage ? find(breakage->group_id) : nullptr;
    if (group != nullptr) {
      group->heard_left(*breakage);
    } else if (breakage && !offers_.is_gone(breakage->group_id)) {
      notices_.keep(type, *breakage, context_);
    }
  } else if (type == control_segment) {
    offers_.on_message(peer, payload, std::move(fds));
  }
}

void World::on_gone(PeerState& peer, const Status& reason) {
  if (bootstrap_) bootstrap_->on_peer_gone(peer, reason);
  growths_.on_peer_gone(peer, reason);
  const auto found = index_.find(&peer);
  if (found == index_.end()) return;
  offers_.on_peer_gone(peer);
  if (reason.code() != Code::closed) {
    on_lost(found->second, reason, false);
  } else {
    for (Group* group : std::vector<Group*>(groups_)) group->process_gone(static_cast<std::uint32_t>(found->second), reason);
  }
  shrinks_.on_gone();
  release_departed();
}

// A process has departed, or a group that had some is closed. Not at once: callers look at the peer that has.
void World::release_departed() {
  engine_->defer([weak = weak_from_this()] {
    const auto world = weak.lock();
    if (!world) return;
    std::vector<Process>& processes = world->processes_;
    std::vector<bool> used(processes.size());
    for (const Group* const group : world->groups_) {
      for (std::uint32_t r = 0; r < group->size(); ++r) used[group->rank(r).process] = true;
    }
    for (std::size_t i = 0; i < processes.size(); ++i) {
      Process& process = processes[i];
      if (used[i] || !process.peer || process.is_self()) continue;
      const PeerPhase phase = process.peer->phase();
      if (phase != PeerPhase::lost && phase != PeerPhase::closed) continue;
      world->index_.erase(process.peer.get());
      process.peer = nullptr;
      process.identity = nullptr;
    }
    world->shrinks_.release_ended();
  });
}

void World::on_lost(std::size_t process, const Status& reason, bool told) {
  if (std::exchange(processes_[process].lost, true)) return;
  const auto peer = processes_[process].peer;
  broadcast(control_process_lost, encode(job::ProcessLost{processes_[process].id, std::string(reason.message())}));
  // Nobody here would notice: what waits for it would wait for a connection that cannot come about.
  const PeerPhase phase = peer ? peer->phase() : PeerPhase::lost;
  if (told && (phase == PeerPhase::idle || phase == PeerPhase::connecting)) peer->fail(reason);
  for (Group* group : std::vector<Group*>(groups_)) group->process_gone(static_cast<std::uint32_t>(process), reason);
  shrinks_.on_gone();
  growths_.on_lost();
}

void World::read_lost(ByteSpan payload) {
  auto lost = job::decode_process_lost(payload);
  if (!lost) return;
  const auto found =
      std::find_if(processes_.begin(), processes_.end(), [&](const Process& process) { return process.id == lost->id; });
  if (found == processes_.end()) return;
  Status reason(Code::peer_lost, std::move(lost->reason));
  if (found->is_self()) {
    const Status expelled = reason.with_context("the other ranks count this one as lost");
    growths_.end_all(expelled);
    return shrinks_.on_expelled(expelled);
  }
  on_lost(static_cast<std::size_t>(found - processes_.begin()), reason, true);
}

void World::tell(MessageType type, const job::Breakage& breakage, const Group* group) {
  const bool is_new = notices_.is_new(type, breakage);
  // By the process that leaves: the last time. A job may close any number of groups.
  if (type == control_group_left && find(breakage.group_id) == nullptr) notices_.forget(type, breakage.group_id);
  if (!is_new) return;
  const bool broken = type == control_group_broken;
  if (broken) broadcast(type, encode(breakage));
  if (group == nullptr) return;
  auto others = others_of(*group);
  if (broken) std::erase_if(others, [](const auto& peer) { return peer->phase() == PeerPhase::ready; });
  notices_.send(others, type, breakage);
}

void send_broken(const std::shared_ptr<PeerState>& peer, const job::Breakage& breakage) {
  peer->when_ready([peer, message = encode(breakage)](const Status& ready) {
    if (ready.ok()) static_cast<void>(peer->send_control(control_group_broken, message));  // a peer that is gone needs no news
  });
}

void World::broke(const job::Breakage& breakage) {
  Group* const group = find(breakage.group_id);
  // A peer may name any number of groups that are not here.
  if (group != nullptr || !notices_.full()) tell(control_group_broken, breakage, group);
  if (group != nullptr) {
    group->heard_broken(breakage);
  } else if (!offers_.is_gone(breakage.group_id)) {
    notices_.keep(control_group_broken, breakage, context_);
  }
  if (breakage.aborts()) growths_.end(breakage.group_id, breakage.reason);
}

void World::broadcast(MessageType type, ByteSpan payload) {
  for (const Process& process : std::vector(processes_)) {
    if (!process.peer || process.is_self() || process.peer->phase() != PeerPhase::ready) continue;
    static_cast<void>(process.peer->send_control(type, payload));  // a peer that is gone needs no news
  }
}

}  // namespace hmc
