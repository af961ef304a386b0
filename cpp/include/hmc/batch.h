// Batch: several collectives given as one.
#pragma once

#include <cstddef>
#include <memory>

#include "hmc/deadline.h"
#include "hmc/export.h"
#include "hmc/status.h"
#include "hmc/work.h"

namespace hmc {

class BatchState;  // collective layer

// What Member::batch() and Communicator::batch() return. From then on, blocking collectives that this thread calls on that
// Communicator are checked and collected, not carried out; start() or run() carries them all out, in any order. So no buffer that
// one of them writes may overlap a buffer of another one, and results are there when the batch is complete. Where all Members are
// CPUs, small calls of one kind (all_reduce, reduce, reduce_scatter, all_gather, broadcast; without `algorithm`) go as one, with
// one exchange for all; of device memory that such Members pass, these are copied through host memory, and start() waits for its
// streams.
// Messages of isend and irecv are posted at once; the batch waits for them as well. Once anything of a batch has failed, all of it
// ends with that error, and messages are cancelled. Every rank makes the same calls in a batch, in the same order.
// Errors of calls that are made meanwhile: invalid_argument (of a call that returns a Work, waits for messages, or exchanges data
// that the caller gets: it has no place in a batch; an overlap). They leave the batch as it was.
// Thread rules: collects the calls of the thread that made it, one at a time for each thread; other threads' calls are not
// collected. Another thread may call start() or run() meanwhile: collectives that are called after that are carried out
// immediately. One thread at a time for this object itself.
class HMC_API Batch {
 public:
  Batch() noexcept;
  explicit Batch(std::unique_ptr<BatchState> state) noexcept;
  // Discards what has not been started.
  ~Batch();
  Batch(Batch&&) noexcept;
  Batch& operator=(Batch&&) noexcept;

  // Neither started, nor discarded, nor empty.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  // Calls and messages so far; of an invalid one, 0.
  [[nodiscard]] std::size_t size() const noexcept;
  // Starts all calls. One Work for them and the messages. Errors: invalid_argument (not valid()), closed.
  [[nodiscard]] Result<Work> start();
  // Waits for the streams that the inputs are produced on, and carries out all calls. After a timeout the Communicator is unusable
  // on this rank, as after that of any collective.
  [[nodiscard]] Status run(Deadline deadline = Deadline::never());
  // Carries out none of them. Messages go on.
  void discard() noexcept;

 private:
  std::unique_ptr<BatchState> state_;
};

}  // namespace hmc
