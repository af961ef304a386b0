#include "device/block_kernel.h"

#include <algorithm>
#include <cstring>

#include "base/env.h"

namespace hmc {
namespace {

constexpr unsigned threads = 1024;  // as many as a group may have: 16 groups of an H200 reach nine tenths of what all 132 do
// Groups of a copy over PCIe, which they saturate; and of long blocks between devices: 32 of an H200 move pages of 64 KiB as fast
// as all 132, and a kernel that digests what has arrived is over earlier. Blocks of 16 KiB they move 2 to 7 % slower.
constexpr std::size_t bus_groups = 16, link_groups = 32, long_block = 64 << 10;
constexpr std::size_t unroll = 4;             // accesses of a thread to a tile, as in the kernel
constexpr std::size_t launch_blocks = 16384;  // of one launch at most
// A first launch of an eighth is under way while the offsets of the rest are passed on, where there are many.
constexpr std::size_t early_blocks = 2048;
constexpr std::size_t chunk_offsets = 4 * launch_blocks;

// Returns all bits of the offsets. By memcpy, which does not fetch the lines it writes: the device has read them since.
std::uint64_t copy_offsets(std::uint64_t* to, const std::uint64_t* from, std::size_t count) noexcept {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) bits |= from[i];
  std::memcpy(to, from, count * sizeof *to);
  return bits;
}

unsigned widest_access(std::uint64_t bits) noexcept {
  for (const unsigned width : {16U, 8U, 4U}) {
    if (bits % width == 0) return width;
  }
  return 1;
}

}  // namespace

BlockKernel::Entry& BlockKernel::entry_of(int device) {
  const std::scoped_lock lock(mutex_);
  return kernels_[device];
}

BlockKernel::Kernel BlockKernel::kernel_of(int device) {
  Entry& entry = entry_of(device);
  const std::scoped_lock lock(entry.mutex);
  Kernel& kernel = entry.kernel;
  if (kernel.loaded.tried) return kernel;
  kernel.loaded.load(api_, vendor_, image_, device, "hmc_copy_blocks");
  const auto wanted = static_cast<std::size_t>(env_integer("HMC_BLOCK_PROCESSORS", 0, 0, 1 << 16));
  const std::size_t all = wanted != 0 ? wanted : kernel.loaded.processors;
  kernel.groups = {all, wanted != 0 ? wanted : std::min(all, link_groups), std::min(all, bus_groups)};
  entry.tried.store(kernel.loaded.tried);
  return kernel;
}

int BlockKernel::prepare(int device) { return kernel_of(device).loaded.code; }

bool BlockKernel::prepared(int device) { return entry_of(device).tried.load(); }

// Never waits: while every chunk is still read from, another is made.
int BlockKernel::make_room(std::deque<Chunk>& chunks, std::size_t offsets, VendorStream stream) {
  if (!chunks.empty()) {
    Chunk& last = chunks.back();
    if (chunk_offsets - last.used >= offsets) return 0;
    if (last.over == nullptr) {
      if (const int code = api_.event_create(&last.over, kernel::event_disable_timing); code != 0) return code;
    }
    if (const int code = api_.event_record(last.over, stream); code != 0) return code;
    if (Chunk& oldest = chunks.front(); vendor_.clear(api_.event_query(oldest.over)) == 0) {
      oldest.used = 0;
      chunks.push_back(oldest);
      chunks.pop_front();
      return 0;
    }
  }
  Chunk made;
  void* data = nullptr;
  if (const int code = api_.allocate_host(&data, chunk_offsets * sizeof(std::uint64_t), kernel::host_alloc_portable); code != 0) {
    return code;
  }
  made.offsets = static_cast<std::uint64_t*>(data);
  chunks.push_back(made);
  return 0;
}

int BlockKernel::launch(const Kernel& kernel, const VendorBlocks& blocks, VendorStream stream) {
  std::deque<Chunk>& chunks = chunks_[stream];
  if (const int code = make_room(chunks, 2 * blocks.count, stream); code != 0) return code;
  Chunk& chunk = chunks.back();
  std::uint64_t* const to = chunk.offsets + chunk.used;
  std::uint64_t* const from = to + blocks.count;
  auto target = reinterpret_cast<unsigned long long>(blocks.target);
  auto source = reinterpret_cast<unsigned long long>(blocks.source);
  std::uint64_t bits = target | source | blocks.bytes;
  bits |= copy_offsets(to, blocks.target_offsets, blocks.count);
  bits |= copy_offsets(from, blocks.source_offsets, blocks.count);
  auto target_offsets = reinterpret_cast<unsigned long long>(to);
  auto source_offsets = reinterpret_cast<unsigned long long>(from);
  unsigned long long count = blocks.count;
  unsigned long long bytes = blocks.bytes;
  unsigned width = widest_access(bits);
  void* arguments[] = {&target, &source, &target_offsets, &source_offsets, &count, &bytes, &width};
  const std::size_t tiles = blocks.count * blocks.bytes / (threads * unroll * width) + 1;
  const bool takes_all = blocks.way == BlockWay::between_devices && blocks.bytes < long_block;
  const BlockWay way = takes_all ? BlockWay::on_device : blocks.way;
  const auto groups = static_cast<unsigned>(std::min(tiles, kernel.groups[static_cast<std::size_t>(way)]));
  const int code = api_.launch(kernel.loaded.function, groups, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
  if (code == 0) chunk.used += 2 * blocks.count;
  return code;
}

int BlockKernel::copy(int device, const VendorBlocks& blocks, VendorStream stream, std::size_t& issued) {
  const Kernel kernel = kernel_of(device);
  if (kernel.loaded.code != 0) return kernel.loaded.code;
  const std::scoped_lock lock(mutex_);
  while (issued < blocks.count) {
    VendorBlocks part = blocks;
    part.target_offsets += issued;
    part.source_offsets += issued;
    part.count = std::min(blocks.count - issued, launch_blocks);
    if (issued == 0 && part.count > early_blocks) part.count /= 8;
    if (const int code = vendor_.clear(launch(kernel, part, stream)); code != 0) return code;
    issued += part.count;
  }
  return 0;
}

}  // namespace hmc
