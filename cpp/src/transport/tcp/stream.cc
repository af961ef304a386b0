#include "transport/tcp/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/tcp/endpoint.h"

namespace hmc::tcp {
namespace {

constexpr std::size_t buffer_bytes = 16 << 10;
constexpr std::size_t read_ahead = 4 << 10;  // beyond a payload: the next header and small frames, not its bulk
constexpr std::size_t max_vectors = 520;     // pieces of a slice and what goes around them; IOV_MAX is 1024

}  // namespace

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
  if (std::exchange(watched, false)) engine.unwatch(fd.get());
  shut = dead = true;
  fd.reset();
  end_burst();
}

Stream::Io Stream::send_burst() {
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

Stream::Io Stream::receive(std::span<const iovec> targets, std::size_t expected, std::size_t& bytes) {
  std::array<iovec, max_vectors> vectors;
  const std::size_t count = std::min(targets.size(), vectors.size() - 1);
  std::copy_n(targets.begin(), count, vectors.begin());
  std::size_t wanted = 0;
  for (std::size_t i = 0; i < count; ++i) wanted += vectors[i].iov_len;
  if (buffer.empty()) buffer.resize(buffer_bytes);
  if (begin == end) begin = end = 0;
  std::size_t room = buffer.size() - end;
  if (wanted != 0) room = std::min(room, read_ahead);
  vectors[count] = {buffer.data() + end, wanted == expected ? room : 0};
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count + 1;
  for (;;) {
    const ssize_t got =
        wanted == 0 ? recv(fd.get(), buffer.data() + end, room, MSG_DONTWAIT) : recvmsg(fd.get(), &message, MSG_DONTWAIT);
    if (got >= 0) {
      bytes = static_cast<std::size_t>(got);
      if (bytes > wanted) end += bytes - wanted;
      return Io::moved;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::blocked;
    if (errno != EINTR) return Io::failed;
  }
}

void Stream::make_room(std::size_t bytes) {
  if (buffer.size() - begin >= bytes) return;
  std::memmove(buffer.data(), buffer.data() + begin, end - begin);
  end -= begin;
  begin = 0;
  if (buffer.size() < bytes) buffer.resize(bytes);
}

}  // namespace hmc::tcp
