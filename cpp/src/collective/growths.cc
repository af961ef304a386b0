#include "collective/growths.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>

#include "collective/group.h"
#include "collective/group_numbers.h"
#include "collective/world.h"

namespace hmc {
namespace {

constexpr std::uint32_t max_ahead = 64;  // calls of grow() by which another process may be ahead of this one
constexpr int grows = -2;                // child_id(): of a growth

bool ended(const PeerState& peer) { return peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed; }

void answer(PeerState& peer, const job::Table& table) {
  static_cast<void>(peer.send_control(control_table, encode(table)));  // its end is noticed by itself
}

void refuse(PeerState& peer, const Status& reason, std::uint64_t group_id = 0, std::uint32_t instance = 0) {
  answer(peer, {group_id, instance, 0, reason, {}, {}});
}

// Nothing: not of this job.
std::optional<std::uint32_t> number_of(const World& world, const PeerState& peer) {
  const auto& processes = world.processes();
  const auto found = std::ranges::find(processes, &peer, [](const Process& process) { return process.peer.get(); });
  return found == processes.end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(found - processes.begin()));
}

void tell(const std::shared_ptr<PeerState>& peer, const job::Grow& message) {
  peer->when_ready([peer, bytes = encode(message)](const Status& ready) {
    if (ready.ok()) static_cast<void>(peer->send_control(control_grow, bytes));  // its end is noticed by itself
  });
}

}  // namespace

job::Ticket Growths::invite(const Group& group, std::uint32_t count) {
  revoke(group.id(), Status(Code::authentication, "the invitation was replaced by another one"));
  return invitations_.issue(group.id(), count);
}

std::shared_ptr<Growing> Growths::open(const Group& group, std::uint32_t instance) {
  auto& growing = all_[{group.id(), instance}];
  if (growing) return growing;
  growing = std::make_shared<Growing>();
  growing->group_id_ = group.id();
  growing->instance_ = instance;
  growing->processes_ = processes_of(group);
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const auto at = std::ranges::find(growing->processes_, group.rank(r).process) - growing->processes_.begin();
    growing->owners_.push_back(static_cast<std::uint32_t>(at));
    if (static_cast<std::size_t>(at) == growing->names_.size()) growing->names_.push_back(group.describe(r));
  }
  growing->joined_.resize(growing->processes_.size());
  const auto& first = group.rank(0).peer;
  if (!first->is_self()) growing->coordinator_ = first;
  growing->shrinking_ = world_.shrinks().expect(child_id(group.id(), instance, grows), growing->processes_);
  return growing;
}

std::shared_ptr<Growing> Growths::begin(const Group& group, std::uint32_t wait_ms) {
  if (world_.find(group.id()) == nullptr) {  // another thread closes it
    const auto none = std::make_shared<Growing>();
    none->failure_ = group.open();
    return none;
  }
  const std::uint32_t instance = begun_[group.id()]++;
  // Every process of the assembled ones has called grow(), and has what came of it. No process is in one that failed long ago.
  std::erase_if(all_, [&](const auto& each) {
    const auto& [group_id, number] = each.first;
    return group_id == group.id() && each.second->called_ && (each.second->assembled_ || instance - number > max_ahead);
  });
  const auto growing = open(group, instance);
  growing->called_ = true;
  if (growing->over()) {
    revoke(group.id(), growing->failure());  // it was made for this growth
    return growing;
  }
  if (const auto aborted = aborted_.find(group.id()); aborted != aborted_.end()) {
    fail(*growing, aborted->second);
    return growing;
  }
  const auto self = std::ranges::find_if(growing->processes_, [&](auto p) { return world_.processes()[p].is_self(); });
  const auto number = static_cast<std::uint32_t>(self - growing->processes_.begin());
  // The devices of its ranks in this group, in order.
  job::Registration own = world_.own();
  own.devices.clear();
  for (const std::uint32_t r : group.local()) own.devices.push_back(group.rank(r).device);
  if (growing->coordinator_) {
    tell(growing->coordinator_, {job::GrowKind::join, growing->group_id_, growing->instance_, wait_ms, encode(own), {}});
    settle(*growing);
    return growing;
  }
  if (!invitations_.has(group.id())) {
    fail(*growing, Status(Code::invalid_argument, "there is no invitation: call invite() on rank 0 before grow()"));
    return growing;
  }
  const std::vector<std::uint32_t> processes = growing->processes_;
  for (std::uint32_t i = 0; i < processes.size(); ++i) {
    // Also finds out who is dead.
    const auto peer = world_.processes()[processes[i]].peer;
    if (i != number && peer && !growing->joined_[i].here)
      tell(peer, {job::GrowKind::ask, growing->group_id_, growing->instance_, 0, {}, {}});
  }
  join(*growing, number, 0, encode(own));
  return growing;
}

std::shared_ptr<Growing> Growths::apply(const std::shared_ptr<PeerState>& coordinator, const job::Ticket& ticket,
                                        std::uint32_t wait_ms) {
  applied_ = std::make_shared<Growing>();
  applied_->coordinator_ = coordinator;
  applied_->called_ = true;
  const auto sent = coordinator->send_control(control_apply, encode(job::Application{ticket, wait_ms, encode(world_.own())}));
  if (!sent.ok()) applied_->failure_ = sent;
  return applied_;
}

bool Growths::on_message(PeerState& peer, MessageType type, ByteSpan payload) {
  if (type != control_grow && type != control_apply && type != control_table) return false;
  if (ended(peer)) return true;
  if (type == control_grow) {
    if (const auto message = job::decode_grow(payload)) on_grow(peer, *message);
  } else if (type == control_apply) {
    const auto application = job::decode_application(payload);
    application ? on_application(peer, *application) : refuse(peer, Status(Code::protocol, "malformed application"));
  } else if (const auto table = job::decode_table(payload)) {
    on_table(peer, *table);
  }
  world_.engine()->wake_waiters();
  return true;
}

void Growths::on_grow(PeerState& peer, const job::Grow& message) {
  const auto from = number_of(world_, peer);
  if (!from) return;
  std::shared_ptr<Growing> growing;
  if (const auto found = all_.find({message.group_id, message.instance}); found != all_.end()) {
    growing = found->second;
  } else {
    const Group* const group = world_.find(message.group_id);
    const auto begun = begun_.find(message.group_id);
    const std::uint32_t next = begun == begun_.end() ? 0 : begun->second;
    if (group == nullptr || message.instance < next || message.instance - next > max_ahead) {
      if (message.kind == job::GrowKind::ask)
        tell(peer.shared_from_this(), {job::GrowKind::left, message.group_id, message.instance, 0, {}, {}});
      if (message.kind == job::GrowKind::join)
        refuse(peer, Status(Code::closed, "rank 0 has closed the Communicator"), message.group_id, message.instance);
      return;
    }
    growing = open(*group, message.instance);
  }
  const auto at = std::ranges::find(growing->processes_, *from);
  if (at == growing->processes_.end() || growing->coordinator_) return;
  const auto number = static_cast<std::uint32_t>(at - growing->processes_.begin());
  switch (message.kind) {
    case job::GrowKind::ask:
      return;
    case job::GrowKind::join:
      if (!growing->failure_.ok()) return refuse(peer, growing->failure_, message.group_id, message.instance);
      return join(*growing, number, message.wait_ms, message.value);
    case job::GrowKind::left:
      return fail(*growing, Status(Code::closed, growing->names_[number] + " has closed the Communicator"));
    case job::GrowKind::give_up:
      return fail(*growing, message.reason);
  }
}

void Growths::join(Growing& growing, std::uint32_t number, std::uint32_t wait_ms, Bytes value) {
  Growing::Joined& joined = growing.joined_[number];
  if (joined.here || growing.over()) return;
  joined = {true, std::move(value), 0};
  if (wait_ms > 0) {
    joined.timer = after(wait_ms, [key = Key{growing.group_id_, growing.instance_}, number](Growths& growths) {
      Growing& late = *growths.all_.at(key);
      late.joined_[number].timer = 0;
      const std::string text = "the deadline of " + late.names_[number] + " passed waiting for " + growths.awaited(late);
      growths.fail(late, Status(Code::timeout, text));
    });
  }
  settle(growing);
}

void Growths::on_application(PeerState& peer, const job::Application& application) {
  const auto admits = invitations_.group_of(application.ticket);
  if (!admits) {
    return refuse(peer, Status(Code::authentication,
                               "this process knows no such invitation: it is forged, has been used, or has ended with its grow(); "
                               "ask for another one"));
  }
  const std::uint64_t group_id = *admits;
  const Group* const group = world_.find(group_id);
  auto registration = job::decode_registration(application.value);
  if (group == nullptr || !registration || registration->id != peer.identity().context_id)
    return refuse(peer, Status(Code::protocol, "malformed application"));
  if (number_of(world_, peer)) return refuse(peer, Status(Code::invalid_argument, "this Context is one of the job already"));
  if (!invitations_.groups_of(peer).empty()) return;  // has come already
  if (invitations_.full(group_id)) {
    return refuse(peer, Status(Code::authentication, "the invitation is for " + std::to_string(invitations_.count(group_id)) +
                                                         " processes, and all of them have come"));
  }
  Applicant applicant{peer.shared_from_this(), std::move(*registration), 0};
  if (application.wait_ms > 0) {
    applicant.timer = after(application.wait_ms, [id = group_id, weak = peer.weak_from_this()](Growths& growths) {
      const auto sender = weak.lock();
      if (!sender) return;
      const auto growing = growths.pending(id);
      const std::string text = growing ? growths.awaited(*growing) : "rank 0 to call grow()";  // while the sender counts as come
      growths.invitations_.withdraw(id, *sender);
      refuse(*sender, Status(Code::timeout, "the deadline passed waiting for " + text));
    });
  }
  invitations_.admit(group_id, std::move(applicant));
  if (const auto growing = pending(group_id)) settle(*growing);
}

std::shared_ptr<Growing> Growths::pending(std::uint64_t group_id) const {
  for (const auto& [key, growing] : all_) {
    if (key.first == group_id && growing->called_ && !growing->over()) return growing;
  }
  return nullptr;
}

void Growths::on_table(PeerState& peer, const job::Table& table) {
  if (applied_ && applied_->coordinator_.get() == &peer) {
    const auto growing = std::exchange(applied_, nullptr);
    if (!table.status.ok()) {
      growing->failure_ = table.status;
      return;
    }
    growing->group_id_ = table.group_id;
    growing->instance_ = table.instance;
    return form(*growing, table);
  }
  const auto found = all_.find({table.group_id, table.instance});
  if (found == all_.end() || found->second->coordinator_.get() != &peer || found->second->over()) return;
  const auto growing = found->second;
  if (!table.status.ok()) return fail(*growing, table.status);
  form(*growing, table);
}

// The growth is complete, or can no longer be.
void Growths::settle(Growing& growing) {
  if (growing.over()) return;
  if (const Status why = unable(growing); !why.ok()) return fail(growing, why);
  if (growing.coordinator_ || !growing.called_ || !invitations_.has(growing.group_id_)) return;
  if (std::ranges::all_of(growing.joined_, &Growing::Joined::here) && invitations_.full(growing.group_id_)) assemble(growing);
}

void Growths::assemble(Growing& growing) {
  job::Table table{growing.group_id_, growing.instance_, static_cast<std::uint32_t>(growing.owners_.size()), {}, {},
                   growing.owners_};
  for (std::size_t i = 0; i < growing.joined_.size(); ++i) {
    auto registration = job::decode_registration(growing.joined_[i].value);
    if (!registration || registration->id != world_.processes()[growing.processes_[i]].id)
      return fail(growing, Status(Code::protocol, growing.names_[i] + " joined with malformed data"));
    table.processes.push_back(std::move(*registration));
  }
  for (const Applicant& applicant : invitations_.applicants(growing.group_id_)) {
    const auto number = static_cast<std::uint32_t>(table.processes.size());
    table.owners.insert(table.owners.end(), applicant.registration.devices.size(), number);
    table.processes.push_back(applicant.registration);
  }
  if (!job::owns_all(table)) return fail(growing, Status(Code::protocol, "a process joined with devices that are not its ranks'"));
  const Bytes message = encode(table);
  if (message.size() > max_control_payload) {
    return fail(growing, Status(Code::invalid_argument, "the table of the new group takes " + std::to_string(message.size()) +
                                                            " bytes, more than one message holds"));
  }
  form(growing, table);
  if (!growing.failure_.ok()) return;
  for (std::size_t i = 0; i < growing.joined_.size(); ++i) {
    Growing::Joined& joined = growing.joined_[i];
    if (joined.timer != 0) world_.engine()->cancel_timer(joined.timer);
    joined = {true, {}, 0};
    const auto peer = world_.processes()[growing.processes_[i]].peer;
    if (peer && !peer->is_self()) static_cast<void>(peer->send_control(control_table, message));  // its end is noticed by itself
  }
  for (const Applicant& applicant : invitations_.take(growing.group_id_))
    static_cast<void>(applicant.peer->send_control(control_table, message));
  world_.engine()->wake_waiters();
}

// The group of `table`, to be agreed on.
void Growths::form(Growing& growing, const job::Table& table) {
  std::vector<std::uint32_t> processes;
  for (const auto& process : table.processes) processes.push_back(world_.meet(process));
  std::vector<RankInfo> ranks;
  std::vector<std::uint32_t> local;
  std::vector<std::size_t> next(processes.size(), 0);
  for (std::uint32_t r = 0; r < table.owners.size(); ++r) {
    const std::uint32_t owner = table.owners[r];
    const Process& process = world_.processes()[processes[owner]];
    if (process.is_self()) local.push_back(r);
    ranks.push_back({process.peer, processes[owner], table.processes[owner].devices[next[owner]++],
                     r < table.old_size ? r : RankInfo::newcomer, process.identity, -1});
  }
  const std::set<std::uint32_t> distinct(processes.begin(), processes.end());
  const bool extends = processes.size() > growing.processes_.size() &&
                       std::equal(growing.processes_.begin(), growing.processes_.end(), processes.begin());
  if (local.empty() || distinct.size() != processes.size() || !extends)
    return fail(growing, Status(Code::protocol, "the coordinator sent a table of another group"));
  const std::uint64_t id = child_id(growing.group_id_, growing.instance_, grows);
  const Group* const old = world_.find(growing.group_id_);  // null: this process joins it
  if (growing.shrinking_) {
    growing.shrinking_->extend(std::span(processes).subspan(growing.processes_.size()));
  } else {
    growing.shrinking_ = world_.shrinks().expect(id, processes);
  }
  growing.group_ = std::make_shared<Group>(world_.shared_from_this(), id, 0, std::move(ranks), std::move(local),
                                           old == nullptr || keeps_context(*old));
  growing.assembled_ = true;
}

void Growths::give_up(Growing& growing, const Status& reason) {
  if (growing.over()) return;
  if (growing.coordinator_ && &growing != applied_.get())  // a newcomer closes its Context
    tell(growing.coordinator_, {job::GrowKind::give_up, growing.group_id_, growing.instance_, 0, {}, reason});
  fail(growing, reason);
}

void Growths::fail(Growing& growing, const Status& reason) {
  if (growing.over()) return;
  growing.failure_ = reason;
  if (&growing == applied_.get()) applied_ = nullptr;
  if (growing.shrinking_) growing.shrinking_->agreement().give_up(reason);
  if (!growing.coordinator_) {
    for (std::size_t i = 0; i < growing.joined_.size(); ++i) {
      Growing::Joined& joined = growing.joined_[i];
      if (joined.timer != 0) world_.engine()->cancel_timer(joined.timer);
      const auto peer = world_.processes()[growing.processes_[i]].peer;
      if (joined.here && peer && !peer->is_self()) refuse(*peer, reason, growing.group_id_, growing.instance_);
      joined = {};
    }
    revoke(growing.group_id_, reason);
  }
  world_.engine()->wake_waiters();
}

// Ends the invitation to the group, with that answer to those who have come.
void Growths::revoke(std::uint64_t group_id, const Status& reason) {
  for (const Applicant& applicant : invitations_.take(group_id)) {
    if (!ended(*applicant.peer)) refuse(*applicant.peer, reason);
  }
}

void Growths::on_peer_gone(PeerState& peer, const Status& reason) {
  if (applied_ && applied_->coordinator_.get() == &peer) {
    std::exchange(applied_, nullptr)->failure_ = reason.with_context("the process that sent the invitation");
    world_.engine()->wake_waiters();
  }
  for (const std::uint64_t group_id : invitations_.groups_of(peer)) {
    invitations_.withdraw(group_id, peer);
    // A process that closed may join again; a dead process ends the growth.
    for (const auto& [key, growing] : std::map(all_)) {
      if (key.first == group_id && growing->called_ && reason.code() != Code::closed)
        fail(*growing, reason.with_context("a newcomer, " + peer.identity().name));
    }
  }
  on_lost();
}

void Growths::on_lost() {
  if (all_.empty()) return;
  for (const auto& [key, growing] : std::map(all_)) settle(*growing);
}

void Growths::end(std::uint64_t group_id, const Status& reason) {
  for (const auto& [key, growing] : std::map(all_)) {
    if (key.first != group_id) continue;
    give_up(*growing, reason);
    if (growing->assembled_) growing->shrinking_->agreement().give_up(reason);
    if (growing->over()) all_.erase(key);
  }
  revoke(group_id, reason);
  if (reason.code() != Code::closed && world_.find(group_id) != nullptr) aborted_.emplace(group_id, reason);
}

void Growths::forget(std::uint64_t group_id) {
  begun_.erase(group_id);
  aborted_.erase(group_id);
}

void Growths::end_all(const Status& reason) {
  for (const auto& [key, growing] : std::map(all_)) fail(*growing, reason);
  if (applied_) std::exchange(applied_, nullptr)->failure_ = reason;
}

}  // namespace hmc
