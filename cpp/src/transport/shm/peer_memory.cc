#include "transport/shm/peer_memory.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

namespace hmc::shm {

namespace {

constexpr std::size_t max_vectors = 256;  // blocks per system call (IOV_MAX is 1024; beyond this the call's cost has vanished)

Status process_gone(int pid) { return Status(Code::peer_lost, "process " + std::to_string(pid) + " is gone", ESRCH); }

bool exited(const UniqueFd& pidfd) noexcept {
  pollfd entry{pidfd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

Result<PeerMemory> PeerMemory::probe(int pid, std::uint64_t address, std::uint64_t expected) {
  if (pid <= 0) return Status(Code::unsupported, "the peer's process id is unknown here (another pid namespace)");
  PeerMemory memory;
  memory.pid_ = pid;
  memory.pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!memory.pidfd_ && errno == ESRCH) return process_gone(pid);
  if (!memory.pidfd_) return errno_status("pidfd_open of process " + std::to_string(pid), errno);
  std::uint64_t found = 0;
  const iovec local{&found, sizeof found};
  const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), sizeof found};
  const ssize_t moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (moved < 0 && errno == EPERM) {
    return Status(Code::unsupported,
                  "ptrace of process " + std::to_string(pid) +
                      " is not permitted (kernel.yama.ptrace_scope, container security profile or another user)",
                  EPERM);
  }
  const int error = moved < 0 ? errno : 0;
  // The descriptor was opened before the word was read, so both name one process: the peer, not one that took over its number.
  if (error == ESRCH || exited(memory.pidfd_)) return process_gone(pid);
  if (error != 0) return errno_status("process_vm_readv of process " + std::to_string(pid), error);
  if (static_cast<std::size_t>(moved) != sizeof found || found != expected) {
    return Status(Code::unsupported, "process " + std::to_string(pid) + " is not the peer (another pid namespace)");
  }
  memory.checked_ = std::chrono::steady_clock::now();
  return memory;
}

// A dead peer's number may be given to another process, whose memory must not be touched. Numbers are given out in turn, so one
// cannot come round within a millisecond of the last look.
Status PeerMemory::check_alive() {
  const auto now = std::chrono::steady_clock::now();
  if (now - checked_ < std::chrono::milliseconds(1)) return {};
  if (exited(pidfd_)) return process_gone(pid_);
  checked_ = now;
  return {};
}

Status PeerMemory::failure(int error) const {
  if (error == ESRCH) return process_gone(pid_);
  if (error == EFAULT) return Status(Code::stale, "the peer's memory is not mapped any more, or not for this access", EFAULT);
  return errno_status("copying to or from the memory of process " + std::to_string(pid_), error);
}

Result<std::size_t> PeerMemory::move(RunCursor& cursor, bool to_peer, std::size_t budget) {
  HMC_TRY(check_alive());
  std::array<iovec, max_vectors> local;
  std::array<iovec, max_vectors> remote;
  RunCursor ahead = cursor;
  std::size_t count = 0;
  std::size_t bytes = 0;
  while (count < max_vectors && bytes < budget && !ahead.at_end() && remote_of(ahead.run()).mapped() == nullptr) {
    const RunPiece piece = ahead.peek(budget - bytes);
    const std::uint64_t address = remote_of(*piece.run).address() + piece.remote_offset;
    local[count] = {local_data(*piece.run) + piece.local_offset, piece.bytes};
    remote[count] = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), piece.bytes};
    ++count;
    bytes += piece.bytes;
    ahead.advance(piece.bytes);
  }
  const ssize_t moved = to_peer ? process_vm_writev(pid_, local.data(), count, remote.data(), count, 0)
                                : process_vm_readv(pid_, local.data(), count, remote.data(), count, 0);
  if (moved <= 0) return failure(moved < 0 ? errno : EFAULT);
  // The kernel may stop early, at a fault: the next call meets it and says which.
  for (auto left = static_cast<std::size_t>(moved); left != 0;) {
    const RunPiece piece = cursor.peek(left);
    cursor.advance(piece.bytes);
    left -= piece.bytes;
  }
  return static_cast<std::size_t>(moved);
}

}  // namespace hmc::shm
