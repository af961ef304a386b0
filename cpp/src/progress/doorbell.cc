#include "progress/doorbell.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>

#include "progress/descriptors.h"
#include "progress/futex.h"

namespace hmc {
namespace {

using TimePoint = Deadline::Clock::time_point;

constexpr std::int64_t short_nap = 1'000'000;  // nanoseconds

// The kernel lengthens a thread's timed sleeps by its slack, 50 us where nobody asked for less: twice as long as the shortest nap.
// The thread may be the caller's, so its own value comes back.
class SharpTimer {
 public:
  SharpTimer() noexcept : slack_(prctl(PR_GET_TIMERSLACK)) { static_cast<void>(prctl(PR_SET_TIMERSLACK, 1UL)); }
  SharpTimer(const SharpTimer&) = delete;
  SharpTimer& operator=(const SharpTimer&) = delete;
  ~SharpTimer() {
    if (slack_ > 0) static_cast<void>(prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_)));
  }

 private:
  const int slack_;  // nanoseconds; 0: none is kept (real-time threads), below: unknown
};

}  // namespace

// Counted before the look: close() sets closed_ before it looks at the count.
Doorbell::Use::Use(Doorbell& bell) noexcept : users_(bell.users_) {
  users_.fetch_add(1);
  open_ = !bell.closed_.load();
}

Status Doorbell::open() {
  fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return fd_ ? Status() : errno_status("create the engine's doorbell", errno);
}

void Doorbell::ring() noexcept {
  if (rung_.exchange(1) != 0) return;
  if (const Use use(*this); use) {
    const std::uint64_t one = 1;
    if (write(fd_.get(), &one, sizeof one) < 0) return;  // full: it is readable, which is all that is asked
  } else {
    futex_wake(&rung_);
  }
}

void Doorbell::sleep(const Descriptors* descriptors, TimePoint until) noexcept {
  if (const Use use(*this); use) {
    pollfd ready[2] = {{fd_.get(), POLLIN, 0}, {descriptors != nullptr ? descriptors->fd() : -1, POLLIN, 0}};
    timespec left{};
    timespec* timeout = nullptr;
    std::optional<SharpTimer> sharp;
    if (until != TimePoint::max()) {
      const auto nanoseconds = std::max<std::int64_t>(0, std::chrono::nanoseconds(until - Deadline::Clock::now()).count());
      left.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
      left.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
      timeout = &left;
      if (nanoseconds < short_nap) sharp.emplace();
    }
    const int count = ppoll(ready, descriptors != nullptr ? 2 : 1, timeout, nullptr);
    if (count > 0 && ready[0].revents != 0) {
      std::uint64_t rings = 0;
      if (read(fd_.get(), &rings, sizeof rings) < 0) rings = 0;
    }
  } else {
    futex_wait(rung_, 0, until);
  }
  // After the read: were it before, a ring in between would be swallowed and leave rung_ set with nothing to read, and every later
  // ring would be dropped. Who still finds it set made its stores before, and the looks that follow see them.
  rung_.store(0);
}

void Doorbell::close() noexcept {
  if (closed_.exchange(true)) return;
  const std::uint64_t one = 1;
  static_cast<void>(!write(fd_.get(), &one, sizeof one));  // full: it is readable, so a sleep ends
  while (users_.load() != 0) sched_yield();
  fd_.reset();
}

}  // namespace hmc
