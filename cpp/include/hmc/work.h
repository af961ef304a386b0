// Work: one operation under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "hmc/deadline.h"
#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

class WorkState;  // progress layer

// The level at which a Work completes, chosen when it is posted.
//   local:  the source may be reused.
//   remote: the bytes are in the target memory and whatever the target does after learning of it sees them.
enum class Complete : std::uint8_t { local, remote };

// What a receive (or a notification) delivered.
struct MessageInfo {
  int source = -1;  // rank in the communicator, or -1 for a peer outside one
  std::int64_t tag = 0;
  std::size_t bytes = 0;  // size of the message
};

// A handle to one operation. Copies refer to the same operation. Dropping every handle does not cancel it.
// Completes exactly once, without further calls by the user (unless progress is manual).
// Thread rules: any thread may call anything.
class HMC_API Work {
 public:
  Work() noexcept = default;
  explicit Work(std::shared_ptr<WorkState> state) noexcept;

  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] bool done() const noexcept;
  // Drives progress until done or the deadline. Returns the operation's outcome, or `timeout` (the operation goes on).
  Status wait(Deadline deadline = Deadline::never()) const;
  // The outcome if done, else would_block.
  [[nodiscard]] Status status() const;
  // Valid once a receive is done.
  [[nodiscard]] MessageInfo info() const;
  // Runs `callback` once, on the dispatcher thread, after completion (also when already complete). Never inside this call.
  void then(std::function<void(const Status&)> callback) const;
  // Asks to stop. ok: the Work completed as `cancelled` and nothing is written by it after this returns. A receive leaves its
  // message to the next receive that fits, also where part of it was written already; where the sender writes, this waits up to a
  // second for it to stop. invalid_argument: already complete. unsupported: too late to stop, it will complete by itself, also as
  // `cancelled`; the message says whether the target may have been written.
  Status cancel() const;
  // As cancel(). A wait (iwait_notify, inotifications, iaccept) that completed unnoticed also returns what it consumed to the front
  // of its queue, unless take() was called: for event loops, where a cancellation may follow the completion.
  Status withdraw() const;

  // Makes `stream` of `device` wait until the Work is complete, with whatever outcome: what is queued on it afterwards sees the
  // data. Waits no longer than to learn who carries a collective of device memory out: milliseconds, and in a group's first one up
  // to 10 s. Errors: unsupported (a device without streams), device, closed (in a child of fork()).
  Status join(const Device& device, StreamHandle stream) const;

  [[nodiscard]] const std::shared_ptr<WorkState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<WorkState> state_;
};

// A Work that delivers a value.
template <class T>
class HMC_API WorkOf : public Work {
 public:
  using Work::Work;
  // The value, once. Does not wait. Errors: would_block (not complete), the operation's error, invalid_argument (taken before).
  Result<T> take() const;
};

// Index of a completed Work (the lowest), or timeout. All Works must belong to one Context; errors: invalid_argument if empty.
HMC_API Result<std::size_t> wait_any(std::span<const Work> works, Deadline deadline = Deadline::never());
// Waits for all; returns the first error by index, after every Work is complete, or timeout. Works of any Contexts.
HMC_API Status wait_all(std::span<const Work> works, Deadline deadline = Deadline::never());

}  // namespace hmc
