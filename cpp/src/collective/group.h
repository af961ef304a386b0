// Group: the ranks behind one Communicator, and the state of its collectives in this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collective/early_calls.h"
#include "collective/fused/calls.h"
#include "collective/rank_owners.h"
#include "collective/running.h"
#include "collective/schedule_cache.h"
#include "collective/world.h"
#include "comm/context_state.h"
#include "comm/target.h"
#include "hmc/buffer.h"

namespace hmc {

class CollectiveWork;

struct RankInfo {
  static constexpr std::uint32_t newcomer = ~std::uint32_t{0};

  std::shared_ptr<PeerState> peer;
  std::uint32_t process = 0;  // in World::processes() of this process: others may number them differently
  Device device;
  std::uint32_t origin = 0;  // the rank in the group that this one was made from; in the world, the rank itself; or newcomer
  std::shared_ptr<const ProcessIdentity> identity;
  int written = -1;  // its process in World::written(); -1: not written down there
};

class Group : public std::enable_shared_from_this<Group>, private CallWatcher {
 public:
  // local: this process's ranks, ascending. keeps_context: of the job's first group, and of those made from such a one by shrink()
  // and grow().
  Group(std::shared_ptr<World> world, std::uint64_t id, std::uint32_t scope, std::vector<RankInfo> ranks,
        std::vector<std::uint32_t> local, bool keeps_context);

  // ---- immutable: any thread ----
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] std::uint32_t scope() const noexcept { return scope_; }
  [[nodiscard]] std::uint32_t collective_scope() const noexcept { return scope_ | collective_scope_bit; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ranks_.size()); }
  [[nodiscard]] const RankInfo& rank(std::uint32_t r) const noexcept { return ranks_[r]; }
  [[nodiscard]] const std::vector<std::uint32_t>& local() const noexcept { return local_; }
  [[nodiscard]] const std::shared_ptr<World>& world() const noexcept { return world_; }
  [[nodiscard]] ContextState& context() const noexcept { return world_->context(); }
  [[nodiscard]] Messenger& messenger() const noexcept { return messenger_; }
  [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept { return world_->engine(); }
  [[nodiscard]] std::string describe(std::uint32_t r) const;  // "rank 3 (host:4711)"
  // Errors: closed.
  [[nodiscard]] Status open() const;

  // ---- any thread, engine lock not held ----
  // Makes its scopes known to comm, takes part in the job's news. Ended by leave(), once, before the last reference is dropped.
  void join();
  // What is under way ends with closed. `context_closes`: so does the Context, if this is the last group that keeps it.
  void leave(bool context_closes = false);
  [[nodiscard]] RankOwners& owners() noexcept { return owners_; }
  [[nodiscard]] ScheduleCache& schedules() noexcept { return schedules_; }

  // ---- engine lock held ----
  // The number of the next collective of local rank `r`. Errors of a group that broke: the reason, in the collective that
  // broke it and in the next one of a rank that has not had it yet; after that closed. Of an aborted group: always the reason.
  Result<std::uint64_t> next_sequence(std::uint32_t r);
  [[nodiscard]] Running& running() noexcept { return running_; }
  [[nodiscard]] fused::Calls& fused() noexcept { return fused_; }
  // No more collectives, because that one of local rank `rank` failed: tells the others. Of several that fail, the earliest counts.
  // `waiting`: ranks that it still owed messages.
  void broke(std::uint32_t rank, std::uint64_t sequence, const Status& reason, const std::vector<std::uint32_t>& waiting);
  // Another rank says so, or a rank aborts the group.
  void heard_broken(const job::Breakage& breakage);
  // A rank that closed the Communicator takes no part in that collective and later ones. It has done its part of the earlier ones.
  void heard_left(const job::Breakage& left);
  // A process died, or said goodbye.
  void process_gone(std::uint32_t process, const Status& reason);
  // What other ranks sent for the collective before this one started it: are they in the same one?
  void compare_early(CollectiveWork& work);

 private:
  friend Status error_of_call(const Group& group, const Status& failed);
  friend bool has_begun(const Group& group) noexcept;
  friend bool takes_no_collectives(const Group& group) noexcept;
  friend bool keeps_context(const Group& group) noexcept;
  void on_call(const PeerState& peer, const Envelope& envelope, std::int64_t tag, std::uint32_t call) override;

  const std::shared_ptr<World> world_;
  Messenger& messenger_;
  const std::uint64_t id_;
  const std::uint32_t scope_;
  const std::vector<RankInfo> ranks_;
  const std::vector<std::uint32_t> local_;
  const bool keeps_context_;
  RankOwners owners_;
  ScheduleCache schedules_;
  std::atomic<bool> closed_{false};

  // Guarded by the engine lock.
  struct OwnCalls {
    std::uint64_t next = 0;  // number of the next collective
    EarlyCalls early;
    bool told = false;  // one of them has ended with an error
  };
  std::vector<OwnCalls> calls_;  // by index in local_
  Running running_;
  std::optional<job::Breakage> broken_;
  std::optional<job::Breakage> left_;  // the earliest that another rank takes no part in
  fused::Calls fused_{*this};
};

// The vendor's library carries it out, among ranks that share no memory in which they would see another one leave. Engine lock
// held.
[[nodiscard]] bool waits_in_library(Group& group, const CollectiveWork& work) noexcept;
[[nodiscard]] bool keeps_context(const Group& group) noexcept;                        // constant
[[nodiscard]] bool all_on_host(const Group& group) noexcept;                          // all Members are CPUs
[[nodiscard]] std::vector<std::shared_ptr<PeerState>> others_of(const Group& group);  // the other processes' peers, each once
[[nodiscard]] bool has_begun(const Group& group) noexcept;  // a local rank has begun a collective. Engine lock held
// Closed, broken, or a rank has left. Engine lock held.
[[nodiscard]] bool takes_no_collectives(const Group& group) noexcept;
// The error of a call of several collectives of which a later one has failed: why the group broke, where `failed` says no more than
// that it did. To the caller it is the one call that failed. Engine lock not held.
[[nodiscard]] Status error_of_call(const Group& group, const Status& failed);

}  // namespace hmc
