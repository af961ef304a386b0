#include "collective/agreement.h"

#include <algorithm>
#include <utility>

namespace hmc {

using Kind = job::ShrinkKind;

namespace {

bool includes(const job::Shrink& message, std::uint32_t process) { return std::ranges::binary_search(message.processes, process); }

std::set<std::uint32_t> united(std::set<std::uint32_t> a, const std::set<std::uint32_t>& b) {
  a.insert(b.begin(), b.end());
  return a;
}

}  // namespace

Agreement::Agreement(Host& host, std::uint32_t self, std::vector<std::uint32_t> processes)
    : host_(host), self_(self), processes_(std::move(processes)) {}

bool Agreement::lives(std::uint32_t process) const {
  return process == self_ || (host_.alive(process) && !left_.contains(process));
}

std::uint32_t Agreement::coordinator() const {
  return *std::ranges::find_if(processes_, [this](std::uint32_t process) { return lives(process); });  // self lives
}

std::vector<std::uint32_t> Agreement::others_without(const std::set<std::uint32_t>& named) const {
  std::vector<std::uint32_t> found;
  for (const std::uint32_t process : processes_) {
    if (process != self_ && lives(process) && !named.contains(process)) found.push_back(process);
  }
  return found;
}

void Agreement::extend(std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) processes_.push_back(processes_.back() + 1);
}

void Agreement::begin() {
  if (state_ != State::waiting) return;
  state_ = State::open;
  step();
}

void Agreement::on_message(std::uint32_t from, const job::Shrink& message) {
  if (!std::ranges::binary_search(processes_, from) || from == self_) return;
  if (!host_.alive(from)) {
    if (message.kind == Kind::join || message.kind == Kind::ask)
      host_.send(from, {Kind::refuse, Status(Code::peer_lost, "the other ranks count this one as lost")});
    return;
  }
  if (state_ == State::committed || state_ == State::failed) return answer(from, message);
  switch (message.kind) {
    case Kind::ask:
      asked_by_.insert(from);
      return;  // begin() or step() joins, once this process counts the lower ones as dead too
    case Kind::join:
      if (!joined_.insert(from).second) return tell_missing(from);
      return step();
    case Kind::propose:
      if (state_ != State::open || from != coordinator() || !includes(message, self_)) return;
      proposal_ = Proposal{from, message.attempt, {message.processes, message.scope}, false, {}};
      return;
    case Kind::accept:
      if (!is_own(proposal_) || proposal_->attempt != message.attempt) return;
      proposal_->accepted.insert(from);
      return step();
    case Kind::decline:
      if (!is_own(proposal_) || proposal_->attempt != message.attempt) return;
      proposal_.reset();
      return step();
    case Kind::commit:
      if (state_ != State::open) return;
      if (!includes(message, self_)) return fail(Status(Code::peer_lost, "the other ranks went on without this one"));
      return commit({message.processes, message.scope});
    case Kind::awaiting:
      if (state_ == State::open && from == coordinator()) missing_ = message.processes;
      return;
    case Kind::left:
      left_.insert(from);
      return step();
    case Kind::refuse:
      return fail(message.reason);
    case Kind::give_up:
      fail(message.reason);
      return host_.spread(message);
  }
}

// After the end.
void Agreement::answer(std::uint32_t from, const job::Shrink& message) {
  const bool asks = message.kind == Kind::ask || message.kind == Kind::join || message.kind == Kind::propose;
  if (state_ == State::failed) {
    if (asks) host_.send(from, {Kind::give_up, reason_});
  } else if (asks) {
    tell_commit(from);
  } else if (message.kind == Kind::give_up) {
    host_.incomplete(message.reason);
  }
}

void Agreement::step() {
  again_ = true;
  if (std::exchange(stepping_, true)) return;
  while (std::exchange(again_, false)) step_once();
  stepping_ = false;
}

void Agreement::step_once() {
  if (state_ != State::open) return;
  const std::uint32_t chosen = coordinator();
  const bool fresh = std::exchange(joined_at_, chosen) != chosen;
  if (chosen == self_) {
    if (fresh) {
      for (const std::uint32_t process : others_without(joined_)) host_.send(process, {Kind::ask, {}});
    }
    coordinate();
  } else if (fresh) {
    host_.send(chosen, {Kind::join, {}});
  }
}

void Agreement::coordinate() {
  if (!others_without(joined_).empty()) return;
  std::vector<std::uint32_t> living = others_without({});
  living.insert(std::ranges::lower_bound(living, self_), self_);
  if (!is_own(proposal_) || proposal_->roster.processes != living) {
    proposal_ = Proposal{self_, ++attempts_, {std::move(living), host_.new_scope()}, false, {}};
    for (const std::uint32_t process : others_without({})) {
      job::Shrink message{Kind::propose, {}};
      message.attempt = proposal_->attempt;
      message.scope = proposal_->roster.scope;
      message.processes = proposal_->roster.processes;
      host_.send(process, std::move(message));
    }
  } else if (proposal_->prepared && others_without(proposal_->accepted).empty()) {
    commit(proposal_->roster);
  }
}

bool Agreement::is_due() const noexcept {
  return state_ == State::committed || state_ == State::failed || (proposal_ && !proposal_->prepared);
}

std::optional<Roster> Agreement::to_prepare() const {
  if (state_ != State::open || !proposal_ || proposal_->prepared) return std::nullopt;
  return proposal_->roster;
}

void Agreement::prepared(const Roster& roster, bool done) {
  if (state_ != State::open || !proposal_ || proposal_->roster != roster) return;
  if (is_own(proposal_)) {
    proposal_->prepared = done;
    if (!done) proposal_.reset();
    return step();
  }
  proposal_->prepared = true;  // answered
  job::Shrink message{done ? Kind::accept : Kind::decline, {}};
  message.attempt = proposal_->attempt;
  host_.send(proposal_->from, std::move(message));
}

void Agreement::commit(Roster roster) {
  state_ = State::committed;
  roster_ = std::move(roster);
  // Those who may not know of it: the ones that wait for this process.
  for (const std::uint32_t process : united(joined_, asked_by_)) {
    if (lives(process)) tell_commit(process);
  }
}

void Agreement::tell_commit(std::uint32_t process) {
  job::Shrink message{Kind::commit, {}};
  message.scope = roster_.scope;
  message.processes = roster_.processes;
  host_.send(process, std::move(message));
}

void Agreement::ask_who_is_missing() {
  if (state_ == State::open && coordinator() != self_) host_.send(coordinator(), {Kind::join, {}});
}

void Agreement::tell_missing(std::uint32_t process) {
  if (state_ != State::open) return;
  job::Shrink message{Kind::awaiting, {}};
  message.processes = awaited();
  std::erase(message.processes, process);
  host_.send(process, std::move(message));
}

void Agreement::fail(const Status& reason) {
  if (state_ == State::committed || state_ == State::failed) return;
  state_ = State::failed;
  reason_ = reason;
}

void Agreement::give_up(const Status& reason) {
  if (state_ == State::waiting) {
    fail(reason);
    for (const std::uint32_t process : united(joined_, asked_by_)) {
      if (lives(process)) host_.send(process, {Kind::give_up, reason});
    }
    return;
  }
  if (state_ != State::open) return;
  const std::uint32_t chosen = coordinator();
  fail(reason);
  host_.spread({Kind::give_up, reason});
  if (chosen != self_) host_.send(chosen, {Kind::give_up, reason});
}

std::vector<std::uint32_t> Agreement::awaited() const {
  if (state_ != State::open) return {};
  if (const std::uint32_t chosen = coordinator(); chosen != self_)
    return missing_.empty() ? std::vector<std::uint32_t>{chosen} : missing_;
  return others_without(is_own(proposal_) ? proposal_->accepted : joined_);
}

}  // namespace hmc
