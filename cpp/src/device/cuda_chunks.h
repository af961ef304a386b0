// CudaChunks: memory of NVIDIA's virtual-memory management, as torch's expandable segments are made of. cuIpcGetMemHandle refuses
// it; each piece that was mapped is shared by a descriptor instead.
#pragma once

#include <cstddef>
#include <span>

#include "device/library.h"
#include "device/vendor_calls.h"

namespace hmc {

// As VendorCalls' calls of these names. Any thread. Drivers before 11.x lack some of it: then all of it is unsupported.
class CudaChunks {
 public:
  void load(const VendorLibrary& library);
  [[nodiscard]] bool available() const noexcept { return available_; }
  int export_chunk(const void* at, VendorChunk& chunk);
  int map_chunks(int device, std::span<VendorChunk> chunks);
  int allow_chunks(int device, std::span<const VendorChunk> chunks);
  void unmap_chunks(std::span<const VendorChunk> chunks);

 private:
  using Pointer = unsigned long long;  // CUdeviceptr
  using Handle = unsigned long long;   // CUmemGenericAllocationHandle
  struct Access {                      // CUmemAccessDesc
    int location_type;
    int location;
    int flags;
  };
  bool same_piece(Handle handle, Pointer at);
  int map_one(const VendorChunk& chunk);

  bool available_ = false;
  int (*range_)(Pointer*, std::size_t*, Pointer) = nullptr;
  int (*retain_)(Handle*, void*) = nullptr;
  int (*release_)(Handle) = nullptr;
  int (*export_)(void*, Handle, int, unsigned long long) = nullptr;
  int (*import_)(Handle*, void*, int) = nullptr;
  int (*reserve_)(Pointer*, std::size_t, std::size_t, Pointer, unsigned long long) = nullptr;
  int (*free_)(Pointer, std::size_t) = nullptr;
  int (*map_)(Pointer, std::size_t, std::size_t, Handle, unsigned long long) = nullptr;
  int (*unmap_)(Pointer, std::size_t) = nullptr;
  int (*allow_)(Pointer, std::size_t, const Access*, std::size_t) = nullptr;
};

}  // namespace hmc
