#include "device/cuda_blocks.h"

#include <algorithm>

#include "device/kernels/copy_blocks_ptx.h"

namespace hmc {
namespace {

constexpr int unsupported = cuda_driver::codes.unsupported;
constexpr unsigned threads = 256;
// An upload from pageable memory of up to this many bytes returns at once, its source copied.
constexpr std::size_t upload_bytes = 64 << 10;

}  // namespace

void CudaBlocks::load(const VendorLibrary& library) {
#define HMC_WANT(member, name, ...) library.load(api_.member, #name);
  HMC_CUDA_KERNEL_CALLS(HMC_WANT)
#undef HMC_WANT
}

CudaBlocks::Kernel& CudaBlocks::kernel_of(int device) {
  Kernel& kernel = kernels_[device];
  if (kernel.tried) return kernel;
  kernel.tried = true;
  kernel.code = unsupported;
  if (!available()) return kernel;
  cuda_driver::Module module = nullptr;
  kernel.code = api_.load_module(&module, copy_blocks_ptx);
  if (kernel.code == 0) kernel.code = api_.get_function(&kernel.function, module, "hmc_copy_blocks");
  if (kernel.code == 0) kernel.code = api_.attribute(&kernel.processors, cuda_driver::device_multiprocessor_count, device);
  if (kernel.code != 0) kernel.code = unsupported;  // copied one by one then
  return kernel;
}

int CudaBlocks::make_room(Scratch& scratch, std::size_t bytes) {
  if (scratch.bytes >= bytes) return 0;
  // Waits for what still reads the old one.
  if (scratch.data != 0) static_cast<void>(api_.release(scratch.data));
  scratch = {};
  const std::size_t wanted = std::max<std::size_t>(bytes * 2, 256 << 10);
  if (const int code = api_.allocate(&scratch.data, wanted); code != 0) return code;
  scratch.bytes = wanted;
  return 0;
}

int CudaBlocks::copy(int device, const VendorBlocks& blocks, VendorStream stream) {
  const std::scoped_lock lock(mutex_);
  const Kernel& kernel = kernel_of(device);
  if (kernel.code != 0) return kernel.code;
  offsets_.assign(blocks.target_offsets, blocks.target_offsets + blocks.count);
  offsets_.insert(offsets_.end(), blocks.source_offsets, blocks.source_offsets + blocks.count);
  const std::size_t bytes = offsets_.size() * sizeof(std::uint64_t);
  Scratch& scratch = scratch_[stream];
  if (const int code = make_room(scratch, bytes); code != 0) return code;
  for (std::size_t at = 0; at < bytes; at += upload_bytes) {
    const auto* from = reinterpret_cast<const std::byte*>(offsets_.data()) + at;
    if (const int code = api_.upload(scratch.data + at, from, std::min(upload_bytes, bytes - at), stream); code != 0) return code;
  }
  auto target = reinterpret_cast<unsigned long long>(blocks.target);
  auto source = reinterpret_cast<unsigned long long>(blocks.source);
  unsigned long long target_offsets = scratch.data;
  unsigned long long source_offsets = scratch.data + blocks.count * sizeof(std::uint64_t);
  unsigned long long count = blocks.count;
  unsigned long long block_bytes = blocks.bytes;
  void* arguments[] = {&target, &source, &target_offsets, &source_offsets, &count, &block_bytes};
  const auto grid = static_cast<unsigned>(std::min<std::size_t>(blocks.count, static_cast<std::size_t>(kernel.processors)));
  return api_.launch(kernel.function, grid, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
}

}  // namespace hmc
