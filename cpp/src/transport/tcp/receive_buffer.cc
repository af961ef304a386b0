#include "transport/tcp/receive_buffer.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace hmc::tcp {
namespace {

constexpr std::size_t buffer_bytes = 16 << 10;
constexpr std::size_t read_ahead = 4 << 10;  // beyond a payload: the next header and small frames, not its bulk

}  // namespace

Io ReceiveBuffer::receive(int fd, std::span<const iovec> targets, std::size_t expected, std::size_t& bytes) {
  std::array<iovec, max_vectors> vectors;
  const std::size_t count = std::min(targets.size(), vectors.size() - 1);
  std::copy_n(targets.begin(), count, vectors.begin());
  std::size_t wanted = 0;
  for (std::size_t i = 0; i < count; ++i) wanted += vectors[i].iov_len;
  if (bytes_.empty()) bytes_.resize(buffer_bytes);
  if (begin_ == end_) begin_ = end_ = 0;
  std::size_t room = bytes_.size() - end_;
  if (wanted != 0) room = std::min(room, read_ahead);
  vectors[count] = {bytes_.data() + end_, wanted == expected ? room : 0};
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count + 1;
  for (;;) {
    const ssize_t got = wanted == 0 ? recv(fd, bytes_.data() + end_, room, MSG_DONTWAIT) : recvmsg(fd, &message, MSG_DONTWAIT);
    if (got >= 0) {
      bytes = static_cast<std::size_t>(got);
      if (bytes > wanted) end_ += bytes - wanted;
      return Io::moved;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::blocked;
    if (errno != EINTR) return Io::failed;
  }
}

void ReceiveBuffer::make_room(std::size_t bytes) {
  if (bytes_.size() - begin_ >= bytes) return;
  std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (bytes_.size() < bytes) bytes_.resize(bytes);
}

}  // namespace hmc::tcp
