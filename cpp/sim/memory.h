// Device memory and pinned host memory of one simulated vendor.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core.h"

namespace hmc::sim {

class Physical;
class Reservation;

// One piece of device memory: a memfd mapped twice. The program gets `address`, which faults on any access by the host and gives
// EFAULT in system calls; the copy engine uses `alias` and the descriptor. Unmapped when the last holder lets go, which may be an
// operation that is still queued.
class Allocation {
 public:
  // Null when the system refuses. Takes `fd` over.
  static std::shared_ptr<Allocation> map(int fd, std::size_t bytes, int device, std::uint64_t nonce, bool imported);
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation();

  std::uintptr_t address = 0;
  std::byte* alias = nullptr;
  std::size_t bytes = 0;   // as asked for
  std::size_t mapped = 0;  // whole pages
  int device = 0;
  int fd = -1;
  std::uint64_t id = 0;     // of this mapping, never used again: the vendors' buffer id
  std::uint64_t nonce = 0;  // of the memory, random: the same in every process that maps it
  bool imported = false;
  bool exportable = true;  // by a handle of shared memory
  int opens = 1;           // imported: times opened, under the registry's lock
  // Of virtual memory: the piece behind it, and the range that it is mapped in, which takes it back.
  std::shared_ptr<Physical> physical;
  std::shared_ptr<Reservation> reservation;
  std::atomic<bool> accessible{true};  // some device has been given access

 private:
  friend Error map_physical(void* address, std::size_t bytes, std::uint64_t handle);
  Allocation() = default;
};
using AllocationRef = std::shared_ptr<Allocation>;

// Whose pointer is this?
struct PointerView {
  enum class Kind { unknown, device, pinned };
  Kind kind = Kind::unknown;
  int device = 0;
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::uint64_t id = 0;
  bool imported = false;
  bool exportable = false;
};
PointerView look_up(const void* pointer);
// The allocation that `pointer` lies in, or null.
AllocationRef find_allocation(const void* pointer);

// Device memory, zeroed, page-aligned. `bytes` > 0. Not `exportable`: as of a stream-ordered pool, without a handle of shared
// memory.
Error allocate(int device, std::size_t bytes, void** address, bool exportable = true);
// `address` is the base of an allocation of this process. Waits for the device's streams, as the vendors do.
Error release(void* address);
// As when the vendor's context of the device ends.
void release_all(int device);
Error memory_info(int device, std::size_t* free_bytes, std::size_t* total_bytes);

// Pinned host memory: `allocate` makes it, `pin` registers what the program has. Unpinning and freeing wait for all streams.
Error allocate_host(std::size_t bytes, int device, void** address);
Error release_host(void* address);
Error pin(void* address, std::size_t bytes, int device);
Error unpin(void* address);

// ---- memory of another process of the same user: the opener takes the descriptor from /proc/<owner>/fd ----
// ---- virtual memory: pieces of device memory, mapped into ranges of addresses ----
inline constexpr std::size_t virtual_granularity = 2 << 20;
struct PhysicalView {
  unsigned pci_bus = 0;
  int device = 0;  // 0 where it is invisible here
  bool shareable = false;
};
// `shareable`: export_physical works.
Error create_physical(int device, std::size_t bytes, bool shareable, std::uint64_t* handle);
Error view_physical(std::uint64_t handle, PhysicalView* view);
// The piece ends with its last handle and mapping.
Error release_physical(std::uint64_t handle);
// The handle of the piece that `address` is mapped to, to be released once more.
Error retain_physical(const void* address, std::uint64_t* handle);
Error export_physical(std::uint64_t handle, int* fd);
Error import_physical(int fd, std::uint64_t* handle);
Error reserve_range(std::size_t bytes, void** address);
Error free_range(void* address, std::size_t bytes);
Error map_physical(void* address, std::size_t bytes, std::uint64_t handle);
// Whole mappings only, of which there may be several; as for unmap_range.
Error allow_access(void* address, std::size_t bytes, int device);
Error unmap_range(void* address, std::size_t bytes);

// What a handle says: the rest (vendor, nonce, size) is the memfd's name, which the opener compares.
struct SharedMemory {
  std::uint32_t pid = 0;
  std::uint32_t fd = 0;
  std::uint64_t nonce = 0;
};
struct FileName {
  std::uint64_t nonce = 0;
  std::size_t bytes = 0;
  std::uint64_t pci_bus = 0;  // of the device that it is memory of
};
// What the memfd behind an entry of /proc/<pid>/fd says of itself; nothing when it is none of this library's.
std::optional<FileName> identify(const char* entry);
// The memfd of this library with that nonce and size, of `device`; -1 when the system refuses.
int make_memory_file(std::uint64_t nonce, std::size_t bytes, int device);
// `allocation` must be of this process.
SharedMemory describe(const Allocation& allocation);
// Maps it as memory of `device`; when it is open already the same address once more. `nonce_mask`: the bits of the nonce that a
// short handle carries. Errors: same_process, invalid_handle (the owner is gone or has freed it).
Error open_shared(const SharedMemory& memory, std::uint64_t nonce_mask, int device, void** address);
Error close_shared(void* address);

// What stands for a dma-buf of whole pages of one allocation: a descriptor, written to `fd`, whose position is where they begin.
Error export_range(const void* address, std::size_t bytes, void* fd);

// Handles of 64 bytes (CUDA, HIP, MUSA).
using Handle64 = std::array<char, 64>;
Error export_handle64(const void* pointer, Handle64* handle);
Error open_handle64(const Handle64& handle, int device, void** address);
// Handles of 8 bytes (CNRT): 22 bits of process, 20 of descriptor, 22 of nonce; only the base of an allocation has one.
Error export_handle8(const void* base, std::uint64_t* handle);
Error open_handle8(std::uint64_t handle, int device, void** address);

}  // namespace hmc::sim
