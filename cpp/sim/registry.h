// The memory that a library knows; shared by memory.cc and ipc.cc.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "memory.h"

namespace hmc::sim {

struct PinnedRange {
  std::size_t bytes;
  int device;  // that was current when it was pinned
  std::uint64_t id;
  bool owned;  // allocated here, not only registered
};

// A handle that the program holds, `count` times.
struct PhysicalHandle {
  std::shared_ptr<Physical> piece;
  int count = 0;
};

struct Registry {
  std::mutex mutex;  // of everything below; no stream is waited for while it is held
  std::map<std::uintptr_t, AllocationRef> allocations;
  std::map<std::uintptr_t, PinnedRange> pinned;
  std::map<std::uintptr_t, std::shared_ptr<Reservation>> reservations;
  std::map<std::uint64_t, PhysicalHandle> physical;
  std::array<std::atomic<std::size_t>, 8> used{};  // bytes per device, without imported memory; grows under the lock only
  [[nodiscard]] std::atomic<std::size_t>& used_by(int device) { return used.at(static_cast<std::size_t>(device)); }
  // The allocation that covers `address`, or null.
  AllocationRef find(std::uintptr_t address);
};
Registry& registry();

// Never given twice.
std::uint64_t next_id();
std::uint64_t random_number();

}  // namespace hmc::sim
