// CollectiveWork: carries out one rank's Schedule by messages in the group's collective scope, or in its place a fused call, or a
// call of the vendor's library.
//
// Driven by the completions of its messages, so that it goes on without further calls by the user. A message of the wrong size is a
// soft error: the rest goes on (everybody gets what is due, nobody hangs), and the Work ends with invalid_argument; what would have
// been built on it is sent empty, so that whoever receives that learns of it too. Everything else breaks the group.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collective/areas.h"
#include "collective/call.h"
#include "collective/fused/calls.h"
#include "collective/group.h"
#include "collective/library_call.h"
#include "collective/plan.h"
#include "collective/schedule_run.h"
#include "progress/one_shot_timer.h"
#include "progress/work_state.h"

namespace hmc {

// Tags of a collective's messages.
constexpr std::int64_t tag_of(std::uint64_t sequence, std::uint8_t round) noexcept {
  return static_cast<std::int64_t>(((sequence & ((1ULL << 53) - 1)) << 8) | round);
}
constexpr std::uint64_t sequence_of(std::int64_t tag) noexcept { return static_cast<std::uint64_t>(tag) >> 8; }

// One rank's part in a collective, checked and planned.
struct CollectiveCall {
  std::shared_ptr<Group> group;
  std::uint32_t rank = 0;
  std::uint32_t call = 0;  // of encode_call()
  std::shared_ptr<const Schedule> schedule;
  CollectiveBuffers buffers;
  std::optional<fused::Way> fused = std::nullopt;         // how it is done over shared memory, where every rank can do that
  std::optional<native::Request> library = std::nullopt;  // in place of the schedule and the above, as messages agree
  std::uint32_t root = 0;                                 // of calls that have one
  bool packable = false;                                  // its blocks are equal: a batch may carry it out together with others
};

class CollectiveWork final : public WorkState {
 public:
  explicit CollectiveWork(CollectiveCall&& call);
  ~CollectiveWork() override;

  // ---- engine lock held ----
  // Takes the collective's number and posts all that waits for nothing. `announced`: the number of a fused call that has been
  // announced. Errors: closed (not accepted).
  Status start(std::optional<std::uint64_t> announced = std::nullopt);
  // Stops what can be stopped and ends with `reason` once nothing of it is under way any more. Breaks the group.
  void fail(const Status& reason);
  Status cancel_locked() override;
  [[nodiscard]] std::shared_ptr<DeviceOrder> device_order() override;
  // It cannot end without that process; `fused`: asked of a fused call alone.
  [[nodiscard]] bool involves(std::uint32_t process, bool fused = false) const;
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
  // "rank 3 (host:4711), rank 5 (...)": whose part is missing; else what of this rank is. After a failure elsewhere: its reason.
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] std::string_view what() const noexcept { return name_of(kind_of(call_)); }
  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t call() const noexcept { return call_; }
  // Another rank is in another collective. Ends this soon, outside the current call chain.
  void mismatch(std::uint32_t other_rank, std::uint32_t other_call);

 private:
  friend class LibraryCall;
  // By a peer. The collective has failed then.
  struct Withdrawal {
    OneShotTimer reason;  // pending: the reason is on its way
    Status how;
  };

  // In place of messages.
  struct Fused {
    std::optional<fused::Way> way;      // until it is tried
    std::shared_ptr<fused::Call> call;  // under way
  };

  class Gate;
  void start_fused(bool announced);
  void on_fused(const Status& status);
  void post(std::uint32_t index);
  void post_message(std::uint32_t index);
  void reduce(std::uint32_t index);
  void on_message(std::uint32_t index, const Status& status);
  void advance();
  void end_if_done();
  // Waits for the fences to any of the group's ranks: what a rank passes on may reach one before this rank's own message does.
  void wait_for_fences();
  void fence_passed();
  void advance_soon();
  void on_failure(const Status& failure);
  void soft_error(const Step& step, const std::string& found);
  void released() noexcept override;

  std::shared_ptr<Group> group_;
  const std::uint32_t rank_;
  const std::uint32_t call_;
  ScheduleRun run_;
  Areas areas_;
  Fused fused_;
  std::unique_ptr<LibraryCall> library_;
  std::uint64_t sequence_ = 0;
  std::uint32_t fences_ = 0;  // pending, of peers and of callers' streams; no message is posted before they are released
  bool posting_ = false;      // advance() is on the stack
  bool deferred_ = false;     // advance() will be called by the engine
  bool failing_ = false;
  bool mismatched_ = false;  // about to fail: another rank is in another collective
  Withdrawal withdrawal_;
  Status outcome_;
};

// The error of a call that names the vendor's library, where that cannot carry it out; on every rank alike. `elsewhere`: why, if
// this process does not know better.
[[nodiscard]] Status library_refused(Group& group, std::uint32_t call, const Status& elsewhere);
// `rank` does not begin its next call, in which the other ranks may be: the group is broken with `reason`, as by any collective
// that is given up. Engine lock not held.
void break_before_start(Group& group, std::uint32_t rank, const Status& reason);
// Starts the collective of one rank. Engine lock not held. Errors: closed; device, which breaks the group.
Result<std::shared_ptr<CollectiveWork>> start_collective(CollectiveCall&& call);
// Carries it out. Small calls among ranks of one host make no Work if the other ranks come soon. Engine lock not held.
Status run_collective(CollectiveCall&& call, Deadline deadline);
// Carries out those of several local Members. None has begun where one of their streams cannot be marked. Engine lock not held.
Status run_collectives(std::vector<CollectiveCall> calls, Deadline deadline);
// Waits for all; on timeout gives them up, which breaks the group. Engine lock not held.
Status finish_collectives(std::span<const std::shared_ptr<CollectiveWork>> works, Deadline deadline);

}  // namespace hmc
