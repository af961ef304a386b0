// Group: the ranks behind one Communicator, and the state of its collectives in this process.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collective/plan.h"
#include "collective/world.h"
#include "comm/context_state.h"
#include "comm/target.h"
#include "hmc/buffer.h"

namespace hmc {

class CollectiveWork;

struct RankInfo {
  std::shared_ptr<PeerState> peer;
  std::uint32_t process = 0;  // in World::processes()
  Device device;
};

class Group : public std::enable_shared_from_this<Group>, private CallWatcher {
 public:
  // local: this process's ranks, ascending.
  Group(std::shared_ptr<World> world, std::uint64_t id, std::uint32_t scope, std::vector<RankInfo> ranks,
        std::vector<std::uint32_t> local);

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
  // Ranks in `peer`: the first, and how many. 0: none of this group.
  struct Owned {
    std::uint32_t first = 0, count = 0;
  };
  [[nodiscard]] Owned owned_by(const PeerState* peer) const noexcept;
  // Errors: closed.
  [[nodiscard]] Status open() const;

  // ---- any thread, engine lock not held ----
  // Makes its scopes known to comm, takes part in the job's news. Ended by leave(), once, before the last reference is dropped.
  void join();
  void leave();  // what is under way ends with closed
  // Whose buffer this is. A process with several ranks is asked for by the buffer, which exchange() noted.
  void note_owner(const RemoteBuffer& remote, std::uint32_t rank);
  [[nodiscard]] Result<std::uint32_t> owner_rank(const RemoteBuffer& remote) const;
  [[nodiscard]] std::vector<int> lost() const;
  // The schedule of local rank `r` for `key` (the block of an all_to_all, or barrier_key), made when it is not the one used last.
  static constexpr std::uint64_t barrier_key = ~std::uint64_t{0};
  std::shared_ptr<const Schedule> schedule(std::uint32_t r, std::uint64_t key, const AllToAllTuning& tuning);

  // ---- engine lock held ----
  // The number of the next collective of local rank `r`. Errors: why the group broke, of the collective that
  // did so; closed, of those that follow.
  Result<std::uint64_t> next_sequence(std::uint32_t r);
  void started(CollectiveWork& work);
  void finished(CollectiveWork& work) noexcept;
  // No more collectives, because that one failed: tells the others. `waiting`: ranks that this one still owed messages.
  void broke(std::uint64_t sequence, const Status& reason, const std::vector<std::uint32_t>& waiting);
  // Another rank says so.
  void heard_broken(const job::Breakage& breakage);
  void process_lost(std::uint32_t process, const Status& reason);
  // What other ranks sent for the collective before this one started it: are they in the same one?
  void compare_early(CollectiveWork& work);

 private:
  [[nodiscard]] std::string name_ranks(const PeerState* peer) const;  // "rank 3", "ranks 2, 3"
  void on_call(const PeerState& peer, const Envelope& envelope, std::int64_t tag, std::uint32_t call) override;
  [[nodiscard]] std::size_t local_index(std::uint32_t r) const noexcept;
  void fail_running(std::uint64_t from_sequence, const Status& reason);

  const std::shared_ptr<World> world_;
  Messenger& messenger_;
  const std::uint64_t id_;
  const std::uint32_t scope_;
  const std::vector<RankInfo> ranks_;
  const std::vector<std::uint32_t> local_;
  std::unordered_map<const PeerState*, Owned> owned_;
  std::atomic<bool> closed_{false};

  // Guarded by the engine lock.
  std::vector<std::uint64_t> sequence_;  // by index in local_
  std::vector<CollectiveWork*> running_;
  // The first message of a collective that is not started here, and the first of another call than that. Collectives that far ahead
  // that they share an entry are not compared before they run.
  struct Early {
    std::uint64_t sequence = ~std::uint64_t{0};
    std::uint32_t rank[2] = {0, 0};
    std::uint32_t call[2] = {0, 0};
  };
  static constexpr std::size_t early_entries = 8;
  std::vector<std::array<Early, early_entries>> early_;  // by index in local_, by sequence
  std::optional<job::Breakage> broken_;
  struct Cached {
    std::uint64_t key = 0;
    std::uint64_t inline_copy = 0;
    std::shared_ptr<const Schedule> schedule;
  };
  std::vector<Cached> barriers_, all_to_alls_;  // by index in local_
  struct Noted {
    std::weak_ptr<RemoteBufferState> state;
    std::uint32_t rank;
  };
  std::unordered_map<const RemoteBufferState*, Noted> noted_;
  std::size_t noted_sweep_ = 64;  // expired entries are dropped when the table reaches this size
};

}  // namespace hmc
