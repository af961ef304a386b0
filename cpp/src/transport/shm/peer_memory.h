// PeerMemory: a peer's address space, read and written by process_vm_readv and process_vm_writev where the kernel lets us.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <span>

#include "base/fd.h"
#include "hmc/status.h"

namespace hmc::shm {

// All calls with the engine lock held.
class PeerMemory {
 public:
  PeerMemory() noexcept = default;
  // Proves that `pid` is the peer and that ptrace access is allowed: the word at `address` there must read `expected`.
  // Errors say why not.
  static Result<PeerMemory> probe(int pid, std::uint64_t address, std::uint64_t expected);

  [[nodiscard]] bool usable() const noexcept { return static_cast<bool>(pidfd_); }
  // One system call: moves bytes in order between the vectors (at most IOV_MAX entries each) and returns how many, at least one.
  // What a write moved is in the peer's memory when this returns.
  // Errors: peer_lost (the process is gone), stale (the peer's memory is not there any more), transport.
  Result<std::size_t> write(std::span<const iovec> local, std::span<const iovec> remote);
  Result<std::size_t> read(std::span<const iovec> local, std::span<const iovec> remote);

 private:
  Status check_alive();
  Status failure(int error) const;

  int pid_ = 0;
  UniqueFd pidfd_;
  std::chrono::steady_clock::time_point checked_;
};

}  // namespace hmc::shm
