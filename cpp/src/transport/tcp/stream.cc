#include "transport/tcp/stream.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "transport/tcp/endpoint.h"

namespace hmc::tcp {

void Burst::clear() noexcept {
  head.clear();
  pieces.clear();
  tail.clear();
  payload = sent = 0;
  op = 0;
  region.reset();
  copy = {};
}

void Stream::on_ready(std::uint32_t events) { endpoint_->on_ready(*this, events); }

void Stream::reply_from(std::shared_ptr<ServedRegion> region) {
  burst.region = std::move(region);
  burst.region->users.push_back(this);
}

void Stream::end_burst() {
  if (burst.region) std::erase(burst.region->users, static_cast<ServedCopies*>(this));
  burst.clear();
}

void Stream::see_out() {
  Bytes copy;
  copy.reserve(burst.payload);
  for (const iovec& piece : burst.pieces) {
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    copy.insert(copy.end(), bytes, bytes + piece.iov_len);
  }
  burst.copy = std::move(copy);
  burst.pieces.assign(1, {burst.copy.data(), burst.copy.size()});
}

void Stream::stop(Engine& engine) {
  if (std::exchange(watch, Watch::none) != Watch::none) engine.unwatch(fd.get());
  shut = dead = true;
  fd.reset();
  end_burst();
}

Io Stream::send_burst() {
  std::array<iovec, max_vectors> vectors;
  std::size_t count = 0;
  std::size_t skip = burst.sent;
  const auto add = [&](const void* data, std::size_t bytes) {
    if (skip >= bytes) {
      skip -= bytes;
    } else if (count < vectors.size()) {
      vectors[count++] = {const_cast<std::byte*>(static_cast<const std::byte*>(data)) + skip, bytes - skip};
      skip = 0;
    }
  };
  add(burst.head.data(), burst.head.size());
  for (const iovec& piece : burst.pieces) add(piece.iov_base, piece.iov_len);
  add(burst.tail.data(), burst.tail.size());
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t sent = sendmsg(fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      burst.sent += static_cast<std::size_t>(sent);
      return Io::moved;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return Io::blocked;
    if (errno != EINTR) return Io::failed;
  }
}

}  // namespace hmc::tcp
