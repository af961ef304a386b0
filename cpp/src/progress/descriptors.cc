#include "progress/descriptors.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

namespace hmc {
namespace {

// What an event carries: the descriptor, and which watch() of it (a number may be closed and reused within one batch).
std::uint64_t pack(int fd, std::uint32_t generation) noexcept {
  return (static_cast<std::uint64_t>(generation) << 32) | static_cast<std::uint32_t>(fd);
}

}  // namespace

Status Descriptors::open() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  return epoll_ ? Status() : errno_status("epoll_create1", errno);
}

Status Descriptors::watch(int fd, std::uint32_t events, FdHandler& handler) {
  if (!epoll_) return {Code::closed, "the engine has stopped; it watches no descriptors any more"};
  if (entries_.contains(fd)) return {Code::invalid_argument, "descriptor " + std::to_string(fd) + " is already watched"};
  epoll_event event{};
  event.events = events;
  event.data.u64 = pack(fd, ++generation_);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_status("watch a descriptor with epoll", errno);
  entries_.emplace(fd, Entry{&handler, generation_});
  return {};
}

void Descriptors::modify(int fd, std::uint32_t events) {
  const auto found = entries_.find(fd);
  if (!epoll_ || found == entries_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = pack(fd, found->second.generation);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Descriptors::unwatch(int fd) {
  if (entries_.erase(fd) != 0 && epoll_) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

bool Descriptors::poll() {
  if (!epoll_) return false;
  std::array<epoll_event, 64> events;
  constexpr int full = static_cast<int>(events.size());
  bool any = false;
  // epoll rotates its ready list: these calls see every ready descriptor once.
  for (std::size_t looked_at = 0; looked_at <= entries_.size(); looked_at += events.size()) {
    const int count = epoll_wait(epoll_.get(), events.data(), full, 0);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t data = events[static_cast<std::size_t>(i)].data.u64;
      const auto found = entries_.find(static_cast<int>(data & 0xffffffffU));
      if (found == entries_.end() || found->second.generation != static_cast<std::uint32_t>(data >> 32)) continue;
      any = true;
      found->second.handler->on_ready(events[static_cast<std::size_t>(i)].events);
    }
    if (count < full || !epoll_) break;
  }
  return any;
}

}  // namespace hmc
