// Shrinks: the agreements of one process on groups that shrink, and the messages between them and those of other processes. Owned
// by World. The last ones stay after their Communicators: another process may only learn from this one what was agreed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collective/agreement.h"
#include "collective/records.h"
#include "comm/context_state.h"
#include "hmc/status.h"

namespace hmc {

class Group;
class World;

inline constexpr MessageType control_shrink = 214;  // job::Shrink

// The processes of a group in World, each once, in the order of their first ranks: their places are the numbers that an Agreement
// has for them, which are the same everywhere.
std::vector<std::uint32_t> processes_of(const Group& group);

// One shrink of one group, or the agreement of a growth. Engine lock held throughout.
class Shrinking final : private Agreement::Host {
 public:
  // `processes`: of the group, as processes_of().
  Shrinking(World& world, std::uint64_t group_id, std::uint32_t instance, std::vector<std::uint32_t> processes);

  [[nodiscard]] Agreement& agreement() noexcept { return agreement_; }
  [[nodiscard]] const Agreement& agreement() const noexcept { return agreement_; }
  // Before the agreement begins: processes that come after the others.
  void extend(std::span<const std::uint32_t> processes);
  // The number of a process of World in the Agreement; none: it is not of the group.
  [[nodiscard]] std::optional<std::uint32_t> number_of(std::uint32_t process) const noexcept;
  // Whether other processes of it live.
  [[nodiscard]] bool may_be_asked() const noexcept;
  // The id of the new group whose processes are `roster`.
  [[nodiscard]] std::uint64_t new_id(const Roster& roster) const noexcept;

 private:
  [[nodiscard]] bool alive(std::uint32_t process) const override;
  void send(std::uint32_t process, job::Shrink message) override;
  void spread(job::Shrink message) override;
  [[nodiscard]] std::uint32_t new_scope() override;
  void incomplete(const Status& reason) override;
  [[nodiscard]] Bytes signed_of(job::Shrink message) const;

  World& world_;
  const std::uint64_t group_id_;
  const std::uint32_t instance_;
  std::vector<std::uint32_t> processes_;  // by number
  Agreement agreement_;
};

// Engine lock held throughout.
class Shrinks {
 public:
  explicit Shrinks(World& world) noexcept : world_(world) {}

  // The next shrink of `group`, begun here.
  std::shared_ptr<Shrinking> begin(const Group& group);
  // The agreement of a growth, which others may begin before this process does.
  std::shared_ptr<Shrinking> expect(std::uint64_t id, std::vector<std::uint32_t> processes);
  // `from`: the number of `peer` in World; none: it is not known there.
  void on_message(PeerState& peer, std::optional<std::uint32_t> from, ByteSpan payload);
  // A process has died or closed.
  void on_gone();
  // Removes agreements that are over and that no living process takes part in.
  void release_ended();
  // The other processes count this one as lost.
  void on_expelled(const Status& reason);
  // The group was removed from the World.
  void forget(std::uint64_t group_id) { begun_.erase(group_id); }
  // Groups whose shrinks are counted.
  [[nodiscard]] std::size_t known() const noexcept { return begun_.size(); }

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // group, instance

  [[nodiscard]] std::shared_ptr<Shrinking> find(const job::Shrink& message);
  std::shared_ptr<Shrinking> add(const Key& key, std::vector<std::uint32_t> processes);

  World& world_;
  std::map<Key, std::shared_ptr<Shrinking>> all_;
  std::deque<Key> order_;                         // in which they were added; some are released
  std::map<std::uint64_t, std::uint32_t> begun_;  // shrinks of a group that is open here
  Status expelled_;
};

}  // namespace hmc
