// PeerMemory: a peer's address space, read and written by process_vm_readv and process_vm_writev where the kernel lets us.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "hmc/status.h"
#include "transport/run_cursor.h"
#include "transport/shm/operation.h"

namespace hmc::shm {

// All calls with the engine lock held.
class PeerMemory {
 public:
  PeerMemory() noexcept = default;
  // Proves that `pid` is the peer and that ptrace access is allowed: the word at `address` there must read `expected`.
  // Errors say why not.
  static Result<PeerMemory> probe(int pid, std::uint64_t address, std::uint64_t expected);

  [[nodiscard]] bool usable() const noexcept { return static_cast<bool>(pidfd_); }
  // One system call: moves at most `budget` bytes (and 256 blocks) from the cursor on, of runs whose region is not mapped, and
  // advances it. Returns bytes, at least one. What a write moved is in the peer's memory when this returns.
  // Errors: peer_lost (the process is gone), stale (the peer's memory is not there any more), transport.
  Result<std::size_t> move(RunCursor& cursor, bool to_peer, std::size_t budget);

 private:
  Status check_alive();
  Status failure(int error) const;

  int pid_ = 0;
  UniqueFd pidfd_;
  std::chrono::steady_clock::time_point checked_;
};

// Whether the run at the cursor is neither mapped nor reached by system call.
inline bool goes_through_ring(const RunCursor& cursor, const PeerMemory& memory) noexcept {
  return !memory.usable() && remote_of(cursor.run()).mapped() == nullptr;
}

}  // namespace hmc::shm
