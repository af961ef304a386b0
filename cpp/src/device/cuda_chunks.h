// CudaChunks: memory of NVIDIA's virtual-memory management, as torch's expandable segments are made of. cuIpcGetMemHandle refuses
// it; each piece that was mapped is shared by a descriptor instead.
#pragma once

#include <cstddef>
#include <span>

#include "device/cuda_driver_api.h"
#include "device/library.h"
#include "device/vendor_calls.h"

namespace hmc {

// As VendorCalls' calls of these names. Any thread. Drivers before 11.x lack some of it: then all of it is unsupported.
class CudaChunks {
 public:
  void load(const VendorLibrary& library);
  [[nodiscard]] bool available() const noexcept { return available_; }
  int hold_chunk(const void* at, VendorChunk& chunk);
  void drop_chunk(const VendorChunk& chunk);
  bool chunk_in_place(const VendorChunk& chunk);
  int export_chunk(VendorChunk& chunk);
  int map_chunks(int device, std::span<VendorChunk> chunks);
  int allow_chunks(int device, std::span<const VendorChunk> chunks);
  void unmap_chunks(std::span<const VendorChunk> chunks);

 private:
  using Pointer = cuda_driver::Pointer;
  using Handle = cuda_driver::Handle;
  bool same_piece(Handle handle, Pointer at);
  int map_one(const VendorChunk& chunk);

  bool available_ = false;
  cuda_driver::ChunkApi api_;
};

}  // namespace hmc
