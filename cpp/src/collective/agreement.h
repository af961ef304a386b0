// Agreement: how the processes of a group agree on those that go on after a loss. Pure: no I/O, no clock, no lock of its own.
//
// The coordinator is the lowest process that neither died nor left the group. Every other one sends it `join`, and from then on
// ignores messages of lower ones, which it counts as dead. Once all living processes have joined, the coordinator proposes them as
// the roster. Everybody prepares (makes the new group) and accepts; then the coordinator commits and says so. A process that dies
// before that makes the coordinator propose again. When the coordinator dies, the next one asks all: a process that has committed
// answers with the roster, which the others take over; where none has, none will, so another roster can be proposed.
// docs/explanation/failures.md has the argument.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "collective/records.h"
#include "hmc/status.h"

namespace hmc {

// What is agreed on.
struct Roster {
  std::vector<std::uint32_t> processes;  // ascending
  std::uint32_t scope = 0;               // of the new group
  friend bool operator==(const Roster&, const Roster&) = default;
};

class Agreement {
 public:
  // What it knows of the world, and does to it.
  class Host {
   public:
    // Neither dead nor closed, as far as is known here. Once false, it stays so.
    [[nodiscard]] virtual bool alive(std::uint32_t process) const = 0;
    // Connects if need be. Messages to one process arrive in order, or not at all once it is dead.
    virtual void send(std::uint32_t process, job::Shrink message) = 0;
    // To all that are connected.
    virtual void spread(job::Shrink message) = 0;
    [[nodiscard]] virtual std::uint32_t new_scope() = 0;
    // Another process gave up when this one had committed: the new group has one that does not know it.
    virtual void incomplete(const Status& reason) = 0;

   protected:
    ~Host() = default;
  };
  enum class State : std::uint8_t {
    waiting,  // this process has not begun
    open,
    committed,
    failed,
  };

  // `processes`: of the group, ascending, with `self` among them. `host` outlives this.
  Agreement(Host& host, std::uint32_t self, std::vector<std::uint32_t> processes);

  // Before begin(): `count` further processes take part, numbered behind the others.
  void extend(std::uint32_t count);
  void begin();
  void on_message(std::uint32_t from, const job::Shrink& message);
  // A process is not alive any more.
  void on_gone() { step(); }
  // The caller's deadline is near: asks the coordinator who is missing, for awaited().
  void ask_who_is_missing();
  // Fails with `reason` unless it is over, and tells the others, who fail too. Before begin(): those who wait for this process.
  void give_up(const Status& reason);
  // Fails with `reason` unless it is over.
  void fail(const Status& reason);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] const Status& reason() const noexcept { return reason_; }  // failed
  [[nodiscard]] const Roster& roster() const noexcept { return roster_; }  // committed
  // The caller of shrink() has something to do.
  [[nodiscard]] bool is_due() const noexcept;
  [[nodiscard]] std::optional<Roster> to_prepare() const;  // open: to be answered by prepared()
  void prepared(const Roster& roster, bool done);          // not done: the scope is taken here
  // Open: the processes that are missing, as far as is known here.
  [[nodiscard]] std::vector<std::uint32_t> awaited() const;

 private:
  struct Proposal {
    std::uint32_t from = 0;
    std::uint32_t attempt = 0;
    Roster roster;
    bool prepared = false;
    std::set<std::uint32_t> accepted;  // by others, where it is this process's own
  };

  [[nodiscard]] bool lives(std::uint32_t process) const;
  [[nodiscard]] std::uint32_t coordinator() const;
  [[nodiscard]] bool is_own(const std::optional<Proposal>& proposal) const { return proposal && proposal->from == self_; }
  [[nodiscard]] std::vector<std::uint32_t> others_without(const std::set<std::uint32_t>& named) const;
  void answer(std::uint32_t from, const job::Shrink& message);
  void step();
  void step_once();
  void coordinate();
  void commit(Roster roster);
  void tell_commit(std::uint32_t process);
  void tell_missing(std::uint32_t process);

  Host& host_;
  const std::uint32_t self_;
  std::vector<std::uint32_t> processes_;
  State state_ = State::waiting;
  std::optional<std::uint32_t> joined_at_;  // the coordinator that knows of this process
  std::set<std::uint32_t> joined_;          // processes that count this one as the coordinator
  std::set<std::uint32_t> asked_by_;        // processes that count themselves as the coordinator
  std::set<std::uint32_t> left_;            // processes that closed their Communicator
  std::vector<std::uint32_t> missing_;      // as the coordinator says
  std::optional<Proposal> proposal_;
  std::uint32_t attempts_ = 0;
  bool stepping_ = false, again_ = false;  // a message that finds its receiver dead calls on_gone()
  Roster roster_;
  Status reason_;
};

}  // namespace hmc
