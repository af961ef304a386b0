// Descriptors beside the bytes of a Unix socket.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/blob.h"

namespace hmc {

// One sendmsg, without waiting and without a signal, of at most max_blob_fds descriptors: what it returned, errno with it.
ssize_t send_with_fds(int socket, std::span<iovec> pieces, std::span<const UniqueFd> fds) noexcept;

struct FdGroup {
  std::vector<UniqueFd> fds;
  bool cut = false;  // the kernel could not give us all of them
};
// One recvmsg, without waiting: what it returned, errno with it. What came along is appended to `groups`.
ssize_t receive_with_fds(int socket, std::span<std::byte> into, std::vector<FdGroup>& groups);

}  // namespace hmc
