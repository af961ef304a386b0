#include "transport/shm/doorbell.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace hmc::shm {

Status Doorbell::open() {
  if (ours_) return {};
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return errno_status("making a doorbell for shm", errno);
  }
  ours_ = UniqueFd(ends[0]);
  given_ = UniqueFd(ends[1]);
  return {};
}

Result<UniqueFd> Doorbell::end_for_peer() const {
  UniqueFd end = given_.duplicate();
  if (!end) return errno_status("duplicating descriptors for a shm address", errno);
  return end;
}

Status Doorbell::connect(Engine& engine, const UniqueFd& passed, std::atomic<std::uint32_t>& armed) {
  int domain = 0;
  socklen_t length = sizeof domain;
  // What is no socket is never sent to; sends do not block.
  if (getsockopt(passed.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX) {
    return Status(Code::protocol, "the peer passed a doorbell that is not a Unix socket");
  }
  peers_ = passed.duplicate();
  if (!peers_) return errno_status("duplicating a peer's doorbell", errno);
  HMC_TRY(open());
  HMC_TRY(engine.watch(ours_.get(), EPOLLIN, *this));
  watched_ = true;
  given_.reset();
  armed_ = &armed;
  return {};
}

void Doorbell::close(Engine& engine) noexcept {
  if (std::exchange(watched_, false) && !engine.forked()) engine.unwatch(ours_.get());
  ours_.reset();
  given_.reset();
  peers_.reset();
}

// That the engine woke up is all that was asked. A peer that goes on ringing does not keep it here.
void Doorbell::on_ready(std::uint32_t) {
  constexpr int most = 16;
  char ring = 0;
  for (int i = 0; i < most && recv(ours_.get(), &ring, sizeof ring, MSG_DONTWAIT) >= 0; ++i) continue;
}

void Doorbell::wake_peer() noexcept {
  if (armed_->exchange(0, std::memory_order_seq_cst) == 0) return;
  // Full (EAGAIN) means rung already; a peer whose end is closed is control's to notice.
  const char ring = 0;
  static_cast<void>(::send(peers_.get(), &ring, sizeof ring, MSG_DONTWAIT | MSG_NOSIGNAL));
}

}  // namespace hmc::shm
