// CudaChunks: memory of NVIDIA's virtual-memory management, as torch's expandable segments are made of. cuIpcGetMemHandle refuses
// it; each piece that was mapped is shared by a descriptor instead.
#pragma once

#include <cstddef>
#include <span>

#include "device/cuda_driver_api.h"
#include "device/vendor_calls.h"

namespace hmc {

// Where the driver lacks some of these functions, all of it is unsupported.
class CudaChunks final : public VendorChunks {
 public:
  explicit CudaChunks(const cuda_driver::ChunkApi& api) noexcept : api_(api) {}
  int hold(const void* at, VendorChunk& chunk) override;
  void release(const VendorChunk& chunk) override;
  bool in_place(const VendorChunk& chunk) override;
  int export_descriptor(VendorChunk& chunk) override;
  int map(int index, std::span<VendorChunk> chunks) override;
  int allow(int index, std::span<const VendorChunk> chunks) override;
  void unmap(std::span<const VendorChunk> chunks) override;

 private:
  using Pointer = cuda_driver::Pointer;
  using Handle = cuda_driver::Handle;
  bool same_piece(Handle handle, Pointer at);
  int map_one(const VendorChunk& chunk);

  const cuda_driver::ChunkApi& api_;
};

}  // namespace hmc
