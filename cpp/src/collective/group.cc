#include "collective/group.h"

#include <algorithm>
#include <set>
#include <utility>

#include "collective/execute.h"
#include "comm/messages/messenger.h"
#include "comm/session/rank_scopes.h"

namespace hmc {
namespace {

// "rank 3", "ranks 2, 3"
std::string name_ranks(const Group& group, const PeerState* peer, std::uint32_t count) {
  std::string text;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    if (group.rank(r).peer.get() == peer) text += (text.empty() ? "" : ", ") + std::to_string(r);
  }
  return (count > 1 ? "ranks " : "rank ") + text;
}

// Whether that collective, and those behind it, have been ended.
bool broken_before(const std::optional<job::Breakage>& broken, std::uint64_t sequence) noexcept {
  return broken && (broken->aborts() || broken->sequence <= sequence);
}

Status closed_status() { return {Code::closed, "this Communicator was closed"}; }

std::size_t index_in(const std::vector<std::uint32_t>& local, std::uint32_t rank) noexcept {
  return static_cast<std::size_t>(std::ranges::lower_bound(local, rank) - local.begin());
}

}  // namespace

Group::Group(std::shared_ptr<World> world, std::uint64_t id, std::uint32_t scope, std::vector<RankInfo> ranks,
             std::vector<std::uint32_t> local, bool keeps_context)
    : world_(std::move(world)),
      messenger_(world_->context().messenger()),
      id_(id),
      scope_(scope),
      ranks_(std::move(ranks)),
      local_(std::move(local)),
      keeps_context_(keeps_context),
      owners_(world_->engine()),
      schedules_(static_cast<std::uint32_t>(ranks_.size()), local_),
      calls_(local_.size()) {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) owners_.add(ranks_[r].peer.get(), r);
}

std::string Group::describe(std::uint32_t r) const { return "rank " + std::to_string(r) + " (" + ranks_[r].identity->name + ")"; }

Status Group::open() const {
  if (closed_.load(std::memory_order_relaxed)) return closed_status();
  return context().usable();
}

void Group::join() {
  std::vector<std::shared_ptr<PeerState>> owners;
  owners.reserve(ranks_.size());
  for (const auto& rank : ranks_) owners.push_back(rank.peer);
  const auto lock = engine()->lock();
  context().scopes().add(scope_, owners);
  context().scopes().add(collective_scope(), std::move(owners));
  if (scope_ == world_scope) {
    for (const auto& [peer, owned] : owners_.all())
      ranks_[owned.first].peer->set_job_ranks(name_ranks(*this, peer, owned.count) + " of the job");
  }
  messenger_.watch_calls(collective_scope(), this);
  world_->add(*this);
}

void Group::leave(bool context_closes) {
  if (engine()->forked()) {
    closed_.store(true);
    return;
  }
  const auto self = shared_from_this();
  bool broken = false;
  {
    const auto lock = engine()->lock();
    // Under the lock: broke() tells no other rank of a failure once this is set.
    if (closed_.exchange(true)) return;
    const bool goes_on = world_->remove(*this, context_closes);
    std::uint64_t first = std::ranges::min_element(calls_, {}, &OwnCalls::next)->next;
    bool in_library = false;
    const auto earlier = [&](const CollectiveWork& work) {
      first = std::min(first, work.sequence());
      in_library = in_library || waits_in_library(*this, work);
      return false;
    };
    running_.fail_if(earlier, {});
    // By messages other ranks would wait for this process in later collectives. In the library they do not see a Context close.
    const bool known = broken_ && (broken_->aborts() || broken_->sequence <= first);
    if (!known && (goes_on || in_library))
      world_->tell(control_group_left, {id_, first, Status(Code::closed, describe(local_.front()) + " closed the Communicator")},
                   this);
    fused_.leave();
    running_.fail_if([](const CollectiveWork&) { return true; }, closed_status());
    messenger_.watch_calls(collective_scope(), nullptr);
    context().scopes().remove(collective_scope());
    context().scopes().remove(scope_);
    broken = broken_.has_value();
  }
  fused_.natives().close(broken);
}

Result<std::uint64_t> Group::next_sequence(std::uint32_t r) {
  HMC_TRY(open());
  OwnCalls& calls = calls_[index_in(local_, r)];
  std::uint64_t& next = calls.next;
  if (broken_) {
    // A rank that acts on the reason, by shrink(), must not miss it because it had done its part before another one died.
    const bool first = !std::exchange(calls.told, true);
    // The one that failed, called here only now: as had it been called before. Every one, where the group was aborted.
    if (next <= broken_->sequence) {
      // Other ranks may be in that call, and wait for this one: those of other processes, and those of this one.
      if (!broken_->aborts()) {
        world_->tell(control_group_broken, {id_, next, broken_->reason}, this);
        broken_->sequence = next;
        running_.fail_if([next](const CollectiveWork& work) { return work.sequence() >= next; },
                         broken_->reason.with_context(describe(r) + " takes no part since a later collective failed"));
      }
      ++next;
      return broken_->reason;
    }
    if (first) return broken_->reason;
    return Status(Code::closed, "this Communicator takes no more collectives since one failed (" + broken_->reason.str() +
                                    "); send, recv, put and get among the ranks that are alive still work");
  }
  if (left_ && next >= left_->sequence) {
    world_->tell(control_group_left, *left_, this);  // ranks that wait for this one may not be connected to the one that left
    return left_->reason;
  }
  return next++;
}

bool waits_in_library(Group& group, const CollectiveWork& work) noexcept {
  return algorithm_of(work.call()) == Algorithm::native && !group.fused().possible();
}

bool keeps_context(const Group& group) noexcept { return group.keeps_context_; }

bool all_on_host(const Group& group) noexcept {
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    if (!group.rank(r).device.is_cpu()) return false;
  }
  return true;
}

std::vector<std::shared_ptr<PeerState>> others_of(const Group& group) {
  std::vector<std::shared_ptr<PeerState>> others;
  std::set<const PeerState*> seen;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const auto& peer = group.rank(r).peer;
    if (!peer->is_self() && seen.insert(peer.get()).second) others.push_back(peer);
  }
  return others;
}

bool has_begun(const Group& group) noexcept {
  return std::ranges::any_of(group.calls_, [](const Group::OwnCalls& calls) { return calls.next != 0; });
}

bool takes_no_collectives(const Group& group) noexcept {
  return group.closed_.load(std::memory_order_relaxed) || group.broken_ || group.left_;
}

Status error_of_call(const Group& group, const Status& failed) {
  if (failed.code() != Code::closed || group.closed_.load(std::memory_order_relaxed)) return failed;
  const auto lock = group.engine()->lock();
  return group.broken_ ? group.broken_->reason : failed;
}

void Group::on_call(const PeerState& peer, const Envelope& envelope, std::int64_t tag, std::uint32_t call) {
  const std::uint32_t src = envelope.src, dst = envelope.dst;
  if (src >= size() || ranks_[src].peer.get() != &peer) return;
  const std::size_t at = index_in(local_, dst);
  if (at == local_.size() || local_[at] != dst) return;
  const std::uint64_t sequence = sequence_of(tag);
  if (CollectiveWork* const work = running_.find(dst, sequence)) {
    if (different_calls(work->call(), call)) work->mismatch(src, call);
  } else if (sequence >= calls_[at].next) {
    calls_[at].early.note(sequence, {src, call});
  }
}

void Group::compare_early(CollectiveWork& work) {
  const auto other = calls_[index_in(local_, work.rank())].early.other_than(work.sequence(), work.call());
  if (other) work.mismatch(other->rank, other->call);
}

void Group::broke(std::uint32_t rank, std::uint64_t sequence, const Status& reason, const std::vector<std::uint32_t>& waiting) {
  calls_[index_in(local_, rank)].told = true;
  if (broken_before(broken_, sequence) || closed_.load(std::memory_order_relaxed)) return;
  broken_ = job::Breakage{id_, sequence, reason};
  const job::Breakage told{id_, sequence, reason.with_context(describe(rank) + " gave up")};
  world_->tell(control_group_broken, told, this);
  // Ranks that wait for a message of ours may not be connected yet, so that nobody else would tell them.
  for (const std::uint32_t r : waiting) {
    const auto& peer = ranks_[r].peer;
    if (peer->is_self() || (peer->phase() != PeerPhase::idle && peer->phase() != PeerPhase::connecting)) continue;
    send_broken(peer, told);
  }
  running_.fail_if([sequence](const CollectiveWork& work) { return work.sequence() == sequence; }, told.reason);
  running_.fail_if([sequence](const CollectiveWork& work) { return work.sequence() > sequence; },
                   reason.with_context("an earlier collective failed"));
  engine()->wake_waiters();
}

void Group::heard_broken(const job::Breakage& breakage) {
  if (broken_ && (broken_->aborts() || (!breakage.aborts() && broken_before(broken_, breakage.sequence)))) return;
  broken_ = breakage;
  running_.fail_if([&](const CollectiveWork& work) { return breakage.aborts() || work.sequence() >= breakage.sequence; },
                   breakage.reason);
  engine()->wake_waiters();
}

void Group::heard_left(const job::Breakage& left) {
  if (left_ && left_->sequence <= left.sequence) return;
  left_ = left;
  running_.fail_if([&](const CollectiveWork& work) { return work.sequence() >= left.sequence; }, left.reason);
  engine()->wake_waiters();
}

void Group::process_gone(std::uint32_t process, const Status& reason) {
  // Messages of one that said goodbye end by themselves: what it owed this side it has sent.
  if (reason.code() == Code::closed) {
    fused_.compare();  // it may have left because it was in another collective
    return running_.fail_if([process](const CollectiveWork& work) { return work.involves(process, true); }, reason);
  }
  std::string ranks;
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (ranks_[r].process == process) ranks += (ranks.empty() ? "" : ", ") + describe(r);
  }
  running_.fail_if([process](const CollectiveWork& work) { return work.involves(process); }, reason.with_context(ranks));
}

}  // namespace hmc
