#include "base/fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/fork.h"

namespace hmc {
namespace {

// One bit per descriptor that HMC owns. Fixed size, so that the fork handler may read it without locks or allocation; descriptors
// beyond it (a raised limit) stay open in the child, as any library's would.
constexpr int tracked_fds = 1 << 16;
std::array<std::atomic<std::uint64_t>, tracked_fds / 64> owned_fds;
std::atomic<std::uint32_t> epoch{0};

void track(int fd) noexcept {
  if (fd >= 0 && fd < tracked_fds) owned_fds[static_cast<std::size_t>(fd) / 64].fetch_or(1ULL << (fd % 64));
}

void untrack(int fd) noexcept {
  if (fd >= 0 && fd < tracked_fds) owned_fds[static_cast<std::size_t>(fd) / 64].fetch_and(~(1ULL << (fd % 64)));
}

void in_child() noexcept {
  epoch.fetch_add(1);
  for (std::size_t word = 0; word < owned_fds.size(); ++word) {
    std::uint64_t bits = owned_fds[word].exchange(0);
    for (int bit = 0; bits != 0; ++bit, bits >>= 1) {
      if ((bits & 1) != 0) close(static_cast<int>(word * 64) + bit);
    }
  }
}

}  // namespace

std::uint32_t fork_epoch() noexcept { return epoch.load(std::memory_order_relaxed); }

void install_fork_handler() {
  static const int installed = pthread_atfork(nullptr, nullptr, in_child);
  static_cast<void>(installed);
}

UniqueFd::UniqueFd(int fd) noexcept : fd_(fd), epoch_(fork_epoch()) { track(fd); }

// The handler of a fork has closed the descriptors that it knows.
bool UniqueFd::is_open() const noexcept { return fd_ >= 0 && (epoch_ == fork_epoch() || fd_ >= tracked_fds); }

int UniqueFd::release() noexcept {
  if (!is_open()) fd_ = -1;
  untrack(fd_);
  return std::exchange(fd_, -1);
}

void UniqueFd::reset() noexcept {
  const int fd = release();
  if (fd >= 0) close(fd);
}

UniqueFd UniqueFd::duplicate() const noexcept { return UniqueFd(fcntl(is_open() ? fd_ : -1, F_DUPFD_CLOEXEC, 0)); }

bool is_owned(int fd) noexcept {
  return fd >= 0 && fd < tracked_fds && (owned_fds[static_cast<std::size_t>(fd) / 64].load() >> (fd % 64) & 1) != 0;
}

UniqueFd make_memfd(const char* name, unsigned flags) noexcept {
  constexpr unsigned noexec_seal = 0x0008;  // MFD_NOEXEC_SEAL: required where vm.memfd_noexec is 2, unknown before Linux 6.3
  flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create(name, flags | noexec_seal);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, flags);
  return UniqueFd(fd);
}

// In parts after a signal, which ends the system's call: some kernels then take back all that the call has allocated.
int allocate_pages(int fd, std::size_t offset, std::size_t bytes) noexcept {
  std::size_t most = bytes;
  while (bytes != 0) {
    const std::size_t n = std::min(most, bytes);
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(n)) == 0) {
      offset += n;
      bytes -= n;
    } else if (errno == EINTR) {
      most = std::size_t{4} << 20;
    } else {
      return errno;
    }
  }
  return 0;
}

bool refuses_shared_memory(std::int64_t error) noexcept { return error == EPERM || error == EACCES || error == ENOSYS; }

}  // namespace hmc
