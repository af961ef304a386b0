#include "collective/agree.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "collective/interruption.h"

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

bool contains(const std::vector<std::uint32_t>& numbers, const Shrinking& shrinking, const RankInfo& rank) {
  const auto number = shrinking.number_of(rank.process);
  return number && std::ranges::binary_search(numbers, *number);
}

// Joined. Null: its scope is taken here.
std::shared_ptr<Group> make_group(const Group& old, const Shrinking& shrinking, const Roster& roster, Agreed what) {
  const std::uint64_t id = shrinking.new_id(roster);
  {
    const auto lock = old.engine()->lock();
    if (!old.world()->reserve_scope(roster.scope)) return nullptr;
  }
  std::vector<RankInfo> ranks;
  std::vector<std::uint32_t> local;
  for (std::uint32_t r = 0; r < old.size(); ++r) {
    if (!contains(roster.processes, shrinking, old.rank(r))) continue;
    if (std::ranges::binary_search(old.local(), r)) local.push_back(static_cast<std::uint32_t>(ranks.size()));
    ranks.push_back(old.rank(r));
    if (what == Agreed::living) ranks.back().origin = r;
  }
  auto group = std::make_shared<Group>(old.world(), id, roster.scope, std::move(ranks), std::move(local), keeps_context(old));
  group->join();
  return group;
}

// "rank 1 (host:12), rank 2 (host:13)". `among`: of these processes, or of all others.
std::string describe(const Group& group, const Shrinking& shrinking, const std::vector<std::uint32_t>& processes, bool among) {
  std::string text;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    if (contains(processes, shrinking, group.rank(r)) == among) text += (text.empty() ? "" : ", ") + group.describe(r);
  }
  return text;
}

// Time for the coordinator to answer who is missing.
Deadline shortly_before(Deadline deadline) {
  constexpr Deadline::Clock::duration enough = std::chrono::seconds(1);
  if (deadline.is_never()) return deadline;
  return Deadline::at(deadline.when() - std::min((deadline.when() - Deadline::Clock::now()) / 5, enough));
}

}  // namespace

Status ended_early(const std::string& self, const std::string& awaited) {
  if (interrupted()) return {Code::cancelled, self + " was interrupted by a signal while waiting for " + awaited};
  return {Code::timeout, "the deadline of " + self + " passed waiting for " + awaited};
}

Result<std::shared_ptr<Group>> agree(const Group& old, Shrinking& shrinking, Agreed what, Deadline deadline) {
  const auto engine = old.engine();
  Agreement& agreement = shrinking.agreement();
  const std::string self = old.describe(old.local().front());
  const auto complete = [&](const Roster& roster) {
    return what == Agreed::living || roster.processes.size() == processes_of(old).size();
  };
  Prepared prepared;
  std::optional<Roster> roster;
  Deadline until = shortly_before(deadline);
  while (!roster) {
    const bool due = engine->drive(until, [&] { return agreement.is_due() || !old.context().usable().ok(); });
    std::optional<Roster> wanted;
    {
      const auto lock = engine->lock();
      // Closed by another thread: the other ranks see that and go on without this one.
      if (const Status open = old.context().usable(); !open.ok()) {
        agreement.fail(open);
        return open;
      }
      if (!due && (interrupted() || until.when() == deadline.when())) {
        agreement.give_up(ended_early(self, describe(old, shrinking, agreement.awaited(), true)));
      } else if (!due) {
        agreement.ask_who_is_missing();
        until = deadline;
      }
      if (agreement.state() == Agreement::State::failed) return agreement.reason();
      if (agreement.state() == Agreement::State::committed) roster = agreement.roster();
      wanted = agreement.to_prepare();
    }
    if (!wanted) continue;
    bool done = true;
    if (complete(*wanted)) {
      auto made = make_group(old, shrinking, *wanted, what);
      done = made != nullptr;
      prepared.replace(std::move(made), *wanted);
    }
    const auto lock = engine->lock();
    agreement.prepared(*wanted, done);
  }
  if (!complete(*roster)) {
    return Status(Code::peer_lost, describe(old, shrinking, roster->processes, false) + " died or closed its Context meanwhile");
  }
  if (auto agreed = prepared.take(*roster)) return agreed;
  // The others counted this process as dead, and not all of them any more.
  const Status reason(Code::peer_lost, "the other ranks agreed without " + self);
  const auto lock = engine->lock();
  old.world()->broke({shrinking.new_id(*roster), job::Breakage::every, reason});
  return reason;
}

}  // namespace hmc
