// Communicator::shrink: the ranks that are left form a new group.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "collective/communicator_state.h"
#include "collective/interruption.h"
#include "collective/member_calls.h"
#include "collective/shrinks.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

// The new group while it is not agreed on. What is not taken leaves.
class Prepared {
 public:
  Prepared() = default;
  ~Prepared() { replace(nullptr, {}); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  void replace(std::shared_ptr<Group> group, Roster roster) {
    if (group_) group_->leave();
    group_ = std::move(group);
    roster_ = std::move(roster);
  }
  // Null: another one was prepared.
  [[nodiscard]] std::shared_ptr<Group> take(const Roster& roster) {
    return roster == roster_ ? std::exchange(group_, nullptr) : nullptr;
  }

 private:
  std::shared_ptr<Group> group_;
  Roster roster_;
};

// Joined. Null: its scope is taken here.
std::shared_ptr<Group> make_group(const Group& old, const Roster& roster, std::uint64_t id) {
  {
    const auto lock = old.engine()->lock();
    if (!old.world()->reserve_scope(roster.scope)) return nullptr;
    old.world()->keep_context(id, old);
  }
  std::vector<RankInfo> ranks;
  std::vector<std::uint32_t> local;
  for (std::uint32_t r = 0; r < old.size(); ++r) {
    if (!std::ranges::binary_search(roster.processes, old.rank(r).process)) continue;
    if (std::ranges::binary_search(old.local(), r)) local.push_back(static_cast<std::uint32_t>(ranks.size()));
    ranks.push_back(old.rank(r));
    ranks.back().origin = r;
  }
  auto group = std::make_shared<Group>(old.world(), id, roster.scope, std::move(ranks), std::move(local));
  group->join();
  return group;
}

// "rank 1 (host:12), rank 2 (host:13)"
std::string describe(const Group& group, const std::vector<std::uint32_t>& processes) {
  std::string text;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    if (std::ranges::binary_search(processes, group.rank(r).process)) text += (text.empty() ? "" : ", ") + group.describe(r);
  }
  return text;
}

// Time for the coordinator to answer who is missing.
Deadline shortly_before(Deadline deadline) {
  constexpr Deadline::Clock::duration enough = std::chrono::seconds(1);
  if (deadline.is_never()) return deadline;
  return Deadline::at(deadline.when() - std::min((deadline.when() - Deadline::Clock::now()) / 5, enough));
}

// Of a wait that ended early. Engine lock held.
Status ended(const Group& group, const Agreement& agreement) {
  const std::string awaited = describe(group, agreement.awaited());
  const std::string self = group.describe(group.local().front());
  if (interrupted()) return {Code::cancelled, self + " was interrupted by a signal while waiting for " + awaited};
  return {Code::timeout, "the deadline of " + self + " passed waiting for " + awaited};
}

}  // namespace

Result<Communicator> Communicator::shrink(Deadline deadline) const {
  HMC_TRY(check(*this));
  const auto& group = state_->group;
  const auto engine = group->engine();
  std::shared_ptr<Shrinking> shrinking;
  {
    const auto lock = engine->lock();
    shrinking = group->world()->shrinks().begin(*group);
  }
  Agreement& agreement = shrinking->agreement();
  Prepared prepared;
  std::optional<Roster> roster;
  Deadline until = shortly_before(deadline);
  while (!roster) {
    const bool due = engine->drive(until, [&agreement] { return agreement.is_due(); });
    std::optional<Roster> wanted;
    {
      const auto lock = engine->lock();
      if (!due && (interrupted() || until.when() == deadline.when())) {
        agreement.give_up(ended(*group, agreement));
      } else if (!due) {
        agreement.ask_who_is_missing();
        until = deadline;
      }
      if (agreement.state() == Agreement::State::failed) return agreement.reason().with_context("shrink");
      if (agreement.state() == Agreement::State::committed) roster = agreement.roster();
      wanted = agreement.to_prepare();
    }
    if (!wanted) continue;
    auto made = make_group(*group, *wanted, shrinking->new_id(*wanted));
    const bool done = made != nullptr;
    prepared.replace(std::move(made), *wanted);
    const auto lock = engine->lock();
    agreement.prepared(*wanted, done);
  }
  auto agreed = prepared.take(*roster);
  if (agreed) return communicator_of(state_->context, std::move(agreed));
  // The others counted this process as dead, and not all of them any more.
  const Status reason(Code::peer_lost, "the other ranks agreed without " + group->describe(group->local().front()));
  const auto lock = engine->lock();
  group->world()->broke({shrinking->new_id(*roster), job::Breakage::every, reason});
  return reason.with_context("shrink");
}

std::vector<int> Communicator::old_ranks() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) ranks.push_back(static_cast<int>(state_->group->rank(static_cast<std::uint32_t>(r)).origin));
  return ranks;
}

}  // namespace hmc
