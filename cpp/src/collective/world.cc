#include "collective/world.h"

#include <algorithm>
#include <utility>

#include "collective/bootstrap.h"
#include "collective/group.h"
#include "comm/session/group_events.h"

namespace hmc {
namespace {

constexpr std::size_t max_told = 65536;  // groups that can break in the life of a job

}  // namespace

void World::attach(const std::shared_ptr<World>& world) {
  const auto lock = world->engine_->lock();
  world->context_.group_events().set_message_handler(
      [world](PeerState& peer, MessageType type, ByteSpan payload) { world->on_control(peer, type, payload); });
  world->context_.group_events().watch_peers([world](PeerState& peer, const Status& reason) { world->on_gone(peer, reason); });
}

void World::set_processes(std::vector<Process> processes) {
  processes_ = std::move(processes);
  index_.clear();
  for (std::size_t i = 0; i < processes_.size(); ++i) index_.emplace(processes_[i].peer.get(), i);
}

void World::add(Group& group) { groups_.push_back(&group); }
void World::remove(Group& group) {
  std::erase(groups_, &group);
  release_scope(group.scope());
}

void World::on_control(PeerState& peer, MessageType type, ByteSpan payload) {
  if (bootstrap_ && bootstrap_->on_message(peer, type, payload)) return;
  if (!index_.contains(&peer)) return;  // not of this job: a serving peer of the same Context
  if (type == control_process_lost) {
    read_lost(payload);
  } else if (type == control_group_broken) {
    read_broken(payload);
  }
}

void World::on_gone(PeerState& peer, const Status& reason) {
  if (bootstrap_) bootstrap_->on_peer_gone(peer, reason);
  const auto found = index_.find(&peer);
  if (found != index_.end() && reason.code() != Code::closed) on_lost(found->second, reason, false);
}

void World::on_lost(std::size_t process, const Status& reason, bool told) {
  Process& which = processes_[process];
  if (std::exchange(which.lost, true)) return;
  broadcast(control_process_lost, encode(job::ProcessLost{which.id, std::string(reason.message())}));
  // Nobody here would notice: what waits for it would wait for a connection that cannot come about.
  const PeerPhase phase = which.peer->phase();
  if (told && (phase == PeerPhase::idle || phase == PeerPhase::connecting)) which.peer->fail(reason);
  for (Group* group : std::vector<Group*>(groups_)) group->process_lost(static_cast<std::uint32_t>(process), reason);
}

void World::read_lost(ByteSpan payload) {
  auto lost = job::decode_process_lost(payload);
  if (!lost) return;
  const auto found =
      std::find_if(processes_.begin(), processes_.end(), [&](const Process& process) { return process.id == lost->id; });
  if (found == processes_.end() || found->peer->is_self()) return;
  on_lost(static_cast<std::size_t>(found - processes_.begin()), Status(Code::peer_lost, std::move(lost->reason)), true);
}

void World::tell_broken(const job::Breakage& breakage) {
  if (told_broken_.insert(breakage.group_id).second) broadcast(control_group_broken, encode(breakage));
}

void World::send_broken(PeerState& peer, const job::Breakage& breakage) {
  static_cast<void>(peer.send_control(control_group_broken, encode(breakage)));  // a peer that is gone needs no news
}

void World::read_broken(ByteSpan payload) {
  const auto breakage = job::decode_breakage(payload);
  if (!breakage || told_broken_.size() >= max_told) return;
  tell_broken(*breakage);
  for (Group* group : std::vector<Group*>(groups_)) {
    if (group->id() == breakage->group_id) group->heard_broken(*breakage);
  }
}

void World::broadcast(MessageType type, ByteSpan payload) {
  for (const Process& process : processes_) {
    if (process.peer->is_self() || process.peer->phase() != PeerPhase::ready) continue;
    static_cast<void>(process.peer->send_control(type, payload));  // a peer that is gone needs no news
  }
}

}  // namespace hmc
