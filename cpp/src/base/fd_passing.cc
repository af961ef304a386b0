#include "base/fd_passing.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace hmc {
namespace {

constexpr std::size_t kernel_max_fds = 253;  // SCM_MAX_FD: with this much room only a descriptor limit cuts a group short

}  // namespace

ssize_t send_with_fds(int socket, std::span<iovec> pieces, std::span<const UniqueFd> fds) noexcept {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(max_blob_fds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  if (fds.size() > max_blob_fds) {
    errno = EINVAL;
    return -1;
  }
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof(int), &fd, sizeof fd);
    }
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_with_fds(int socket, std::span<std::byte> into, std::vector<FdGroup>& groups) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kernel_max_fds * sizeof(int))> control;
  iovec piece{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
  bool any = false;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    FdGroup group{{}, cut};
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      group.fds.emplace_back(fd);
    }
    groups.push_back(std::move(group));
    any = true;
  }
  if (cut && !any) groups.push_back({{}, true});
  return got;
}

}  // namespace hmc
