#include "transport/ipc/descriptor_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "hmc/deadline.h"

namespace hmc::ipc {

Result<DescriptorChannel> DescriptorChannel::create() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return errno_status("making a socket for the descriptors of memory", errno);
  }
  DescriptorChannel channel;
  channel.near_ = UniqueFd(ends[0]);
  channel.far_ = UniqueFd(ends[1]);
  return channel;
}

Result<UniqueFd> DescriptorChannel::far_end() const {
  UniqueFd end = far_.duplicate();
  if (!end) return errno_status("duplicating the socket for the descriptors of memory", errno);
  return end;
}

void DescriptorChannel::connect(UniqueFd peers) {
  theirs_ = std::move(peers);
  far_.reset();
}

Status DescriptorChannel::send(ByteSpan bytes, std::span<const UniqueFd> fds) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  if (send_with_fds(near_.get(), {&piece, 1}, fds) >= 0) return {};
  switch (errno) {
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
      return {Code::would_block, "the peer has not taken the last descriptors yet"};
    case ETOOMANYREFS:
      return {Code::unsupported, "too many descriptors are on their way to other processes (ulimit -n)", errno};
    default:
      return errno_status("passing descriptors to the peer", errno);  // a broken pipe: a peer that dies
  }
}

std::optional<DescriptorChannel::Received> DescriptorChannel::receive(std::size_t most) {
  Received received;
  received.bytes.resize(most);
  std::vector<FdGroup> groups;
  const ssize_t got = receive_with_fds(theirs_.get(), received.bytes, groups);
  if (got <= 0) return std::nullopt;
  received.bytes.resize(static_cast<std::size_t>(got));
  if (!groups.empty()) received.group = std::move(groups.front());
  return received;
}

bool DescriptorChannel::peer_stops_within(int milliseconds) const {
  if (!theirs_) return false;
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(milliseconds));
  pollfd wanted{theirs_.get(), 0, 0};
  int found = 0;
  do {
    found = poll(&wanted, 1, deadline.poll_timeout_ms());
  } while (found < 0 && errno == EINTR);
  return found == 1 && (wanted.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace hmc::ipc
