// Streams and events: each stream is a thread with a queue in order. Operations take HMC_SIM_DELAY_US microseconds more than their
// work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core.h"

namespace hmc::sim {

class Stream;
using StreamRef = std::shared_ptr<Stream>;

// HMC_SIM_DELAY_US.
std::chrono::microseconds delay();

// A point in a stream's work: all that was submitted up to then.
struct Ticket {
  StreamRef stream;  // null: no work at all, so it is over
  std::uint64_t number = 0;
  [[nodiscard]] Error query() const;  // ok, not_ready, or the failure of the work up to here
  Error wait() const;                 // the same, never not_ready
};

// The first operation that fails makes the stream a failed one, as on hardware: what follows is not done, and every later query or
// wait, also of events recorded behind it, gives the error. Events recorded before it stay good.
class Stream {
 public:
  Stream(int device, bool blocking) : device_(device), blocking_(blocking) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { shut_down(); }

  [[nodiscard]] int device() const { return device_; }
  // Whether it keeps order with the null stream.
  [[nodiscard]] bool blocking() const { return blocking_; }
  // Appends `work` (may be empty), to be done after `waits`; its number. The thread starts with the first.
  std::uint64_t submit(std::function<Error()> work, std::vector<Ticket> waits);
  [[nodiscard]] std::uint64_t submitted() const;
  [[nodiscard]] Error query(std::uint64_t number) const;
  Error wait(std::uint64_t number) const;
  void forget_failure();
  // Finishes what was submitted, then ends the thread.
  void shut_down();

 private:
  struct Task {
    std::function<Error()> work;
    std::vector<Ticket> waits;
  };
  void run();
  [[nodiscard]] Error outcome(std::uint64_t number) const;  // under mutex_

  const int device_;
  const bool blocking_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Task> queue_;
  std::uint64_t submitted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t failed_at_ = 0;  // number of the operation that failed, 0: none
  Error failure_ = Error::ok;
  bool stopping_ = false;
  std::thread thread_;
};

// What a vendor's stream handle names: null and the legacy handle 1 (and 2, which vendors give each thread; here it is the same
// one) are the null stream of `device`. Null result: no stream.
StreamRef find_stream(void* handle, int device);
Error create_stream(int device, bool blocking, void** handle);
// Waits for its work.
Error destroy_stream(void* handle);
// Submits with the order that the null stream keeps with the blocking streams of its device.
Ticket submit(const StreamRef& stream, std::function<Error()> work, std::vector<Ticket> waits = {});
// Submits and waits; the error of `work` is returned and leaves the stream as it was.
Error run_blocking(const StreamRef& stream, std::function<Error()> work);
// All that was submitted to the stream so far.
Ticket mark(const StreamRef& stream);
// The same and, where the null stream keeps order with others, what goes before it in those.
Ticket fence(const StreamRef& stream);
Error synchronize_device(int device);
void forget_stream_failures();

// Events: the work before their last record.
// Events are of a device: only its streams record them.
Error create_event(int device, void** handle);
Error destroy_event(void* handle);
Error record_event(void* handle, const StreamRef& stream);
Error query_event(void* handle);
Error synchronize_event(void* handle);
Error wait_event(const StreamRef& stream, void* handle);

}  // namespace hmc::sim
