// RankCommunicator: one rank's communicator of a vendor's library, and the thread that calls the library for it.
//
// The library's calls may block on other ranks, so they are made on that thread, one after the other, and never with a lock held.
// What they queue on the device ends by the device's events, without a thread that waits. An abort has a thread of its own: it ends
// calls that block.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "base/completion.h"
#include "device/runtime.h"
#include "hmc/deadline.h"
#include "native/library.h"

namespace hmc::native {

// Any thread, engine lock held or not, unless it says otherwise. Callbacks come on the thread, without a lock.
class RankCommunicator final : public std::enable_shared_from_this<RankCommunicator> {
 public:
  using Points = std::array<std::shared_ptr<StreamPoint>, 2>;

  // `library` is open. Engine lock not held. Ended by close(). Errors: of DeviceStreams::open_queue(), out_of_memory (no thread).
  static Result<std::shared_ptr<RankCommunicator>> make(Library& library, const Device& device, int rank, int ranks);
  // Use make().
  RankCommunicator(Library& library, std::unique_ptr<DeviceQueue> queue, const Place& place)
      : library_(library), queue_(std::move(queue)), place_(place) {}

  // A number for a communicator: rank 0 makes it, for all. Errors: closed after abort(); the library's make the process avoid it.
  void make_number(std::function<void(const Result<UniqueId>&)> made);
  // Joins the communicator of that number. Once. The other ranks have to join it too before `connected` is called: closed, without
  // them, after abort(). An error that is not a peer's makes the process avoid the library.
  void connect(const UniqueId& id, std::function<void(const Status&)> connected);
  // Once connected. `done` as for DeviceRuntime::copy, or on the thread. Errors of the library end it once nothing runs any more,
  // and abort the communicator; so it does when abort() was called.
  void start(const Call& call, Points after, Completion* done);
  // What runs ends soon, whatever it has done, and nothing else starts. Idempotent.
  void abort();
  // Once nothing is pending: leaves the communicator, and the thread ends. Waits for it until the deadline; it goes on by itself.
  // Engine lock not held.
  void close(Deadline deadline);

 private:
  class Issued;
  using Job = std::function<void()>;
  enum class Abort : std::uint8_t {
    no,
    begun,
    queued,  // for the thread that calls the library, as the system refused another one
    done,
  };
  [[nodiscard]] bool aborts() const noexcept { return abort_ != Abort::no; }
  [[nodiscard]] bool is_aborted();
  void add(Job job);
  void work();
  void join(const UniqueId& id, const std::function<void(const Status&)>& connected);
  void issue(const Call& call, const Points& after, Completion* done);
  void look_for_errors();
  [[nodiscard]] bool fails(int code) const noexcept;
  void fail(const Status& why);
  void abort_now();
  void issued_ended() noexcept;
  // Of the outcome that the device reports.
  [[nodiscard]] Status outcome(const Status& of_device);

  Library& library_;
  const std::unique_ptr<DeviceQueue> queue_;
  const Place place_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  Handle handle_ = nullptr;               // once connected, until it is destroyed or aborted
  std::uint32_t pending_ = 0;             // calls that the device carries out
  bool closing_ = false, ended_ = false;  // of the thread
  bool calling_ = false;                  // the thread is in the library, with handle_
  Abort abort_ = Abort::no;
  Status failure_;  // the library's, the first
};

}  // namespace hmc::native
