// Growths: how newcomers come to the processes of a group. Owned by World. The process of the group's rank 0 coordinates: it gives
// out a ticket, and once every process of the group has called grow() and every newcomer has applied with the ticket, it sends all
// of them the table of the new group. What follows is an Agreement on this table, with the id that the growth has (shrinks.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collective/invitations.h"
#include "collective/records.h"
#include "collective/shrinks.h"
#include "comm/context_state.h"
#include "hmc/deadline.h"
#include "hmc/status.h"

namespace hmc {

class Group;
class World;

inline constexpr MessageType control_grow = 215;   // job::Grow, between processes of the group
inline constexpr MessageType control_apply = 216;  // job::Application, of a newcomer
inline constexpr MessageType control_table = 217;  // job::Table, of the coordinator

// One growth of one group, as this process sees it. Engine lock held.
class Growing {
 public:
  [[nodiscard]] bool over() const noexcept { return assembled_ || !failure_.ok(); }
  [[nodiscard]] const Status& failure() const noexcept { return failure_; }
  // Over without a failure: the group to be agreed on, not joined, and the agreement, not begun. Once: it keeps the World.
  [[nodiscard]] std::shared_ptr<Group> take() noexcept { return std::exchange(group_, nullptr); }
  [[nodiscard]] const std::shared_ptr<Shrinking>& shrinking() const noexcept { return shrinking_; }

 private:
  friend class Growths;
  struct Joined {
    bool here = false;
    Bytes value;
    Engine::TimerId timer = 0;  // when its sender gives up
  };

  std::uint64_t group_id_ = 0;
  std::uint32_t instance_ = 0;
  std::vector<std::uint32_t> processes_;    // of the group that grows, in World, by number
  std::vector<std::uint32_t> owners_;       // by rank of that group: a number
  std::vector<std::string> names_;          // by number, for errors
  std::vector<Joined> joined_;              // by number; coordinator
  bool called_ = false;                     // in this process
  std::shared_ptr<PeerState> coordinator_;  // null: this process
  std::shared_ptr<Shrinking> shrinking_;
  std::shared_ptr<Group> group_;
  bool assembled_ = false;
  Status failure_;
};

// Engine lock held throughout.
class Growths {
 public:
  Growths(World& world, Engine& engine) noexcept : world_(world), invitations_(engine) {}

  // `count` processes may apply for the next growth of `group`, whose rank 0 is of this process. Replaces the last invitation.
  job::Ticket invite(const Group& group, std::uint32_t count);
  // The next growth of `group`, called here. `wait_ms`: see job::Grow.
  std::shared_ptr<Growing> begin(const Group& group, std::uint32_t wait_ms);
  // Of a newcomer, at the process that invited it.
  std::shared_ptr<Growing> apply(const std::shared_ptr<PeerState>& coordinator, const job::Ticket& ticket, std::uint32_t wait_ms);
  // Fails unless it is over, on all processes.
  void give_up(Growing& growing, const Status& reason);
  // What `growing` waits for: "rank 1 (host:12) to call grow(), 1 of 2 invited processes to join".
  [[nodiscard]] std::string awaited(const Growing& growing) const;

  bool on_message(PeerState& peer, MessageType type, ByteSpan payload);  // false: not one of its messages
  void on_peer_gone(PeerState& peer, const Status& reason);
  // A process of the World has died.
  void on_lost();
  // The group, or none, takes part in a growth any more.
  void end(std::uint64_t group_id, const Status& reason);
  void end_all(const Status& reason);
  // The group was removed from the World.
  void forget(std::uint64_t group_id);
  // Groups that something is kept of.
  [[nodiscard]] std::size_t known() const noexcept { return begun_.size() + aborted_.size() + invitations_.open(); }

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // group, instance

  std::shared_ptr<Growing> open(const Group& group, std::uint32_t instance);
  void on_grow(PeerState& peer, const job::Grow& message);
  void on_application(PeerState& peer, const job::Application& application);
  void on_table(PeerState& peer, const job::Table& table);
  void join(Growing& growing, std::uint32_t number, std::uint32_t wait_ms, Bytes value);
  void settle(Growing& growing);
  void assemble(Growing& growing);
  void form(Growing& growing, const job::Table& table);
  void fail(Growing& growing, const Status& reason);
  void revoke(std::uint64_t group_id, const Status& reason);
  [[nodiscard]] std::shared_ptr<Growing> pending(std::uint64_t group_id) const;  // called here; null: none
  [[nodiscard]] Status unable(const Growing& growing) const;
  [[nodiscard]] Engine::TimerId after(std::uint32_t wait_ms, std::function<void(Growths&)> action);

  World& world_;
  std::map<Key, std::shared_ptr<Growing>> all_;
  std::map<std::uint64_t, std::uint32_t> begun_;  // growths of a group that is open here
  Invitations invitations_;
  std::map<std::uint64_t, Status> aborted_;  // groups that are open here
  std::shared_ptr<Growing> applied_;         // of a newcomer, until it has the table
};

}  // namespace hmc
