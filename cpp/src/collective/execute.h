// CollectiveWork: carries out one rank's Schedule by messages in the group's collective scope.
//
// Driven by the completions of its messages, so that it goes on without further calls by the user. A message of the wrong size is a
// soft error: the rest goes on (everybody gets what is due, nobody hangs), and the Work ends with invalid_argument; what would have
// been built on it is sent empty, so that whoever receives that learns of it too. Everything else breaks the group.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collective/group.h"
#include "collective/plan.h"
#include "hmc/peer.h"
#include "progress/work_state.h"

namespace hmc {

struct CollectiveBuffers {
  MemoryView in;
  MemoryView out;
};

class CollectiveWork final : public WorkState {
 public:
  // `what` names it in errors ("all_to_all") and must be a literal.
  CollectiveWork(std::shared_ptr<Group> group, std::uint32_t rank, std::string_view what, std::shared_ptr<const Schedule> schedule,
                 CollectiveBuffers buffers);
  ~CollectiveWork() override;

  // ---- engine lock held ----
  // Takes the collective's number and posts all that waits for nothing. Errors: closed (not accepted).
  Status start();
  // Stops what can be stopped and ends with `reason` once nothing of it is under way any more. Breaks the group.
  void fail(const Status& reason);
  Status cancel_locked() override;
  [[nodiscard]] bool involves(std::uint32_t process) const;  // has unfinished messages with it
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
  // "rank 3 (host:4711), rank 5 (...)": whose messages are missing; empty if nobody's.
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] std::string_view what() const noexcept { return what_; }

 private:
  enum class Phase : std::uint8_t { blocked, posted, done };
  struct Progress {
    std::uint32_t waits = 0;
    Phase phase = Phase::blocked;
    bool poisoned = false;  // builds on a message of the wrong size
    std::shared_ptr<WorkState> work;
  };

  void post(std::uint32_t index);
  void post_message(std::uint32_t index);
  Status copy(const Step& step) const;
  void on_message(std::uint32_t index, const Status& status);
  void finish(std::uint32_t index);
  void advance();
  void end_if_done();
  [[nodiscard]] MemoryView slice(const Slice& where, std::uint64_t bytes) const;
  void await_reason(const Status& failure);
  void soft_error(const Step& step, const std::string& found);
  void released() noexcept override;

  std::shared_ptr<Group> group_;
  const std::uint32_t rank_;
  const std::string_view what_;
  std::shared_ptr<const Schedule> schedule_;
  CollectiveBuffers buffers_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<Progress> progress_;
  std::vector<std::uint32_t> ready_;
  std::uint64_t sequence_ = 0;
  std::uint32_t left_ = 0;       // steps not done
  std::uint32_t under_way_ = 0;  // messages posted and not complete
  bool posting_ = false;         // advance() is on the stack
  bool deferred_ = false;        // advance() will be called by the engine
  bool failing_ = false;
  bool awaiting_reason_ = false;  // a peer withdrew: the collective has failed, its reason is on the way
  Status outcome_;
};

// Starts the collective of one rank. Engine lock not held. Errors: closed.
Result<std::shared_ptr<CollectiveWork>> start_collective(const std::shared_ptr<Group>& group, std::uint32_t rank,
                                                         std::string_view what, std::shared_ptr<const Schedule> schedule,
                                                         CollectiveBuffers buffers);
// Waits for all; on timeout gives them up, which breaks the group. Engine lock not held.
Status finish_collectives(std::span<const std::shared_ptr<CollectiveWork>> works, Deadline deadline);

}  // namespace hmc
