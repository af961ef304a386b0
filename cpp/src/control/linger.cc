#include "control/linger.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>

namespace hmc::control {
namespace {

constexpr auto linger_limit = std::chrono::seconds(1);
constexpr std::size_t max_discarded_bytes = 64 * 1024;

}  // namespace

Linger::Linger(Engine& engine, std::unique_ptr<Stream> stream, std::function<void()> over)
    : stream_(std::move(stream)), over_(std::move(over)), watch_(engine), timer_(engine) {
  stream_->shutdown_write();
  timer_.start(Deadline::after(linger_limit), [this] { end(); });
  // Without a watch the time limit ends it.
  static_cast<void>(watch_.start(stream_->fd(), EPOLLIN, *this));
}

void Linger::on_ready(std::uint32_t) {
  std::array<char, 4096> waste;
  for (;;) {
    const ssize_t n = recv(stream_->fd(), waste.data(), waste.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) break;
    discarded_ += static_cast<std::size_t>(n);
    if (discarded_ > max_discarded_bytes) break;
  }
  end();
}

void Linger::end() {
  watch_.stop();
  timer_.stop();
  const auto over = over_;  // it may destroy this object
  over();
}

}  // namespace hmc::control
