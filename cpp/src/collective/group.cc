#include "collective/group.h"

#include <algorithm>
#include <utility>

#include "collective/execute.h"
#include "comm/messages/messenger.h"

namespace hmc {
namespace {

Status closed_status() { return {Code::closed, "this Communicator was closed"}; }

}  // namespace

Group::Group(std::shared_ptr<World> world, std::uint64_t id, std::uint32_t scope, std::vector<RankInfo> ranks,
             std::vector<std::uint32_t> local)
    : world_(std::move(world)),
      messenger_(world_->context().messenger()),
      id_(id),
      scope_(scope),
      ranks_(std::move(ranks)),
      local_(std::move(local)),
      sequence_(local_.size(), 0),
      early_(local_.size()),
      barriers_(local_.size()),
      all_to_alls_(local_.size()) {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    Owned& owned = owned_.try_emplace(ranks_[r].peer.get(), Owned{r, 0}).first->second;
    ++owned.count;
  }
}

std::string Group::describe(std::uint32_t r) const {
  return "rank " + std::to_string(r) + " (" + world_->processes()[ranks_[r].process].name + ")";
}

std::string Group::name_ranks(const PeerState* peer) const {
  std::string text;
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (ranks_[r].peer.get() == peer) text += (text.empty() ? "" : ", ") + std::to_string(r);
  }
  return (owned_by(peer).count > 1 ? "ranks " : "rank ") + text;
}

Group::Owned Group::owned_by(const PeerState* peer) const noexcept {
  const auto found = owned_.find(peer);
  return found == owned_.end() ? Owned{} : found->second;
}

Status Group::open() const {
  if (closed_.load(std::memory_order_relaxed)) return closed_status();
  return context().usable();
}

void Group::join() {
  std::vector<std::shared_ptr<PeerState>> owners;
  owners.reserve(ranks_.size());
  for (const auto& rank : ranks_) owners.push_back(rank.peer);
  const auto lock = engine()->lock();
  context().add_scope(scope_, owners);
  context().add_scope(collective_scope(), std::move(owners));
  if (scope_ == world_scope) {
    for (const auto& [peer, owned] : owned_) ranks_[owned.first].peer->set_job_ranks(name_ranks(peer) + " of the job");
  }
  messenger_.watch_calls(collective_scope(), this);
  world_->add(*this);
}

void Group::leave() {
  if (closed_.exchange(true) || engine()->forked()) return;
  const auto self = shared_from_this();
  const auto lock = engine()->lock();
  world_->remove(*this);
  fail_running(0, closed_status());
  messenger_.watch_calls(collective_scope(), nullptr);
  context().remove_scope(collective_scope());
  context().remove_scope(scope_);
}

void Group::note_owner(const RemoteBuffer& remote, std::uint32_t rank) {
  if (owned_by(ranks_[rank].peer.get()).count < 2) return;  // the peer says it all
  const auto lock = engine()->lock();
  if (noted_.size() >= noted_sweep_) {
    std::erase_if(noted_, [](const auto& entry) { return entry.second.state.expired(); });
    noted_sweep_ = std::max<std::size_t>(64, 2 * noted_.size());
  }
  noted_.insert_or_assign(remote.state().get(), Noted{remote.state(), rank});
}

Result<std::uint32_t> Group::owner_rank(const RemoteBuffer& remote) const {
  if (!remote.valid()) return Status(Code::invalid_argument, "the RemoteBuffer is empty");
  const auto peer = owner_of(remote);
  const Owned owned = owned_by(peer.get());
  if (owned.count == 1) return owned.first;
  if (owned.count == 0) {
    return Status(Code::invalid_argument, "the RemoteBuffer belongs to a process outside this Communicator; use its Peer");
  }
  const auto lock = engine()->lock();
  const auto found = noted_.find(remote.state().get());
  return found == noted_.end() ? owned.first : found->second.rank;
}

std::vector<int> Group::lost() const {
  std::vector<int> ranks;
  if (engine()->forked()) return ranks;
  const auto lock = engine()->lock();
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (world_->processes()[ranks_[r].process].lost || ranks_[r].peer->phase() == PeerPhase::lost)
      ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

Result<std::uint64_t> Group::next_sequence(std::uint32_t r) {
  HMC_TRY(open());
  std::uint64_t& next = sequence_[local_index(r)];
  if (broken_) {
    // The one that failed, called here only now: as had it been called before.
    if (next <= broken_->sequence) {
      ++next;
      return broken_->reason;
    }
    return Status(Code::closed, "this Communicator takes no more collectives since one failed (" + broken_->reason.str() +
                                    "); send, recv, put and get among the ranks that are alive still work");
  }
  return next++;
}

std::size_t Group::local_index(std::uint32_t r) const noexcept {
  return static_cast<std::size_t>(std::lower_bound(local_.begin(), local_.end(), r) - local_.begin());
}

std::shared_ptr<const Schedule> Group::schedule(std::uint32_t r, std::uint64_t key, const AllToAllTuning& tuning) {
  Cached& cached = (key == barrier_key ? barriers_ : all_to_alls_)[local_index(r)];
  {
    const auto lock = engine()->lock();
    if (cached.schedule && cached.key == key && cached.inline_copy == tuning.inline_copy) return cached.schedule;
  }
  auto made =
      std::make_shared<const Schedule>(key == barrier_key ? plan_barrier(r, size()) : plan_all_to_all(r, size(), key, tuning));
  const auto lock = engine()->lock();
  cached = {key, tuning.inline_copy, made};
  return made;
}

void Group::on_call(const PeerState& peer, const Envelope& envelope, std::int64_t tag, std::uint32_t call) {
  const std::uint32_t src = envelope.src, dst = envelope.dst;
  if (src >= size() || ranks_[src].peer.get() != &peer) return;
  const std::size_t at = local_index(dst);
  if (at == local_.size() || local_[at] != dst) return;
  const std::uint64_t sequence = sequence_of(tag);
  for (CollectiveWork* work : running_) {
    if (work->rank() == dst && work->sequence() == sequence) {
      if (work->call_differs(call)) work->mismatch(src, call);
      return;
    }
  }
  if (sequence < sequence_[at]) return;
  Early& early = early_[at][sequence % early_entries];
  if (early.sequence != sequence) {
    early = {sequence, {src, 0}, {call, 0}};
  } else if (early.call[1] == 0 && ((early.call[0] ^ call) & call_kind_mask) != 0) {
    early.rank[1] = src;
    early.call[1] = call;
  }
}

void Group::compare_early(CollectiveWork& work) {
  const Early& early = early_[local_index(work.rank())][work.sequence() % early_entries];
  if (early.sequence != work.sequence()) return;
  for (const int i : {0, 1}) {
    if (early.call[i] != 0 && work.call_differs(early.call[i])) return work.mismatch(early.rank[i], early.call[i]);
  }
}

void Group::started(CollectiveWork& work) { running_.push_back(&work); }
void Group::finished(CollectiveWork& work) noexcept { std::erase(running_, &work); }

void Group::broke(std::uint64_t sequence, const Status& reason, const std::vector<std::uint32_t>& waiting) {
  if (broken_ || closed_.load(std::memory_order_relaxed)) return;
  broken_ = job::Breakage{id_, sequence, reason};
  world_->tell_broken(*broken_);
  // Ranks that wait for a message of ours may not be connected yet, so that nobody else would tell them.
  for (const std::uint32_t r : waiting) {
    const auto& peer = ranks_[r].peer;
    if (peer->is_self() || (peer->phase() != PeerPhase::idle && peer->phase() != PeerPhase::connecting)) continue;
    peer->when_ready([peer, breakage = *broken_](const Status& ready) {
      if (ready.ok()) World::send_broken(*peer, breakage);
    });
  }
  fail_running(sequence, reason);
}

void Group::heard_broken(const job::Breakage& breakage) {
  if (broken_) return;
  broken_ = breakage;
  fail_running(breakage.sequence, breakage.reason.with_context("another rank gave up"));
}

void Group::process_lost(std::uint32_t process, const Status& reason) {
  std::vector<std::shared_ptr<WorkState>> hit;
  for (CollectiveWork* work : running_) {
    if (work->involves(process)) hit.push_back(work->shared_from_this());
  }
  if (hit.empty()) return;
  std::string ranks;
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (ranks_[r].process == process) ranks += (ranks.empty() ? "" : ", ") + describe(r);
  }
  for (const auto& work : hit) static_cast<CollectiveWork&>(*work).fail(reason.with_context(ranks));
}

void Group::fail_running(std::uint64_t from_sequence, const Status& reason) {
  std::vector<std::shared_ptr<WorkState>> hit;
  for (CollectiveWork* work : running_) {
    if (work->sequence() >= from_sequence) hit.push_back(work->shared_from_this());
  }
  for (const auto& work : hit) static_cast<CollectiveWork&>(*work).fail(reason);
}

}  // namespace hmc
