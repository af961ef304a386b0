#include "progress/host_lookup.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/thread.h"
#include "hmc/interrupt.h"

namespace hmc {
namespace {

constexpr int look_ms = 50;  // between two looks for a signal

}  // namespace

struct HostLookup::State {
  std::string address;
  UniqueFd ended;
  std::mutex mutex;
  std::optional<Result<std::vector<SocketAddress>>> found;
};

Result<HostLookup> HostLookup::start(std::string_view address) {
  auto state = std::make_shared<State>();
  state->address = address;
  state->ended = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->ended) return errno_status("look up the host of " + state->address, errno);
  // The thread refers to nothing but the state: it may outlive the Context that asked.
  const auto thread = start_thread("hmc-lookup", [state] {
    auto found = resolve_tcp(state->address, false);
    const std::scoped_lock lock(state->mutex);
    state->found = std::move(found);
    const std::uint64_t one = 1;
    static_cast<void>(!write(state->ended.get(), &one, sizeof one));  // an empty counter takes it
  });
  if (!thread) return Status(Code::transport, "look up the host of " + state->address + ": no thread can be started");
  thread->detach();
  return HostLookup(std::move(state));
}

int HostLookup::fd() const noexcept { return state_->ended.get(); }

Result<std::vector<SocketAddress>> HostLookup::take() {
  const std::scoped_lock lock(state_->mutex);
  if (!state_->found) return Status(Code::would_block, "the host of " + state_->address + " is still being looked up");
  return std::move(*state_->found);
}

Result<std::vector<SocketAddress>> resolve_tcp_until(std::string_view address, Deadline deadline) {
  HMC_ASSIGN(std::vector<SocketAddress> numeric, numeric_tcp(address, false));
  if (!numeric.empty()) return numeric;
  HMC_ASSIGN(HostLookup lookup, HostLookup::start(address));
  Interruptible* const caller = Interruptible::current();
  if (caller != nullptr) caller->before_waiting();
  for (;;) {
    pollfd ended{lookup.fd(), POLLIN, 0};
    const int left = deadline.poll_timeout_ms();
    if (poll(&ended, 1, caller == nullptr || (left >= 0 && left < look_ms) ? left : look_ms) > 0) return lookup.take();
    if (caller != nullptr && caller->ask()) return Status(Code::cancelled, "interrupted by a signal");
    if (deadline.passed()) {
      return Status(Code::timeout, "the host of " + std::string(address) + " could not be looked up in time: the name server " +
                                       "does not answer; use a numeric address");
    }
  }
}

}  // namespace hmc
