#include "device/exchange_kernel.h"

#include <algorithm>

namespace hmc {
namespace {

constexpr unsigned pack_bytes = 16;

// As in kernels/mapped_memory.cu.
struct Part {
  unsigned long long offset, bytes;
};
struct Place {
  unsigned long long kept_at, keeps;
};
struct Chunks {
  unsigned long long first, steps, chunk, lag;
};
struct Segment {
  unsigned long long slot, cells_at, slots_at, cells;
};
struct Arithmetic {
  double scale;
  unsigned divisor, op;
};
struct Ranks {
  unsigned width, rank, ranks, collectors, shot;
};
struct Sources {
  unsigned count, first;
};
struct Call {
  const void* input;
  void* output;
  void* segments[most_exchange_ranks];
  const void* ended;
  Part gives[most_exchange_ranks];
  Part takes[most_exchange_ranks];
  Part own;
  Place place;
  Chunks chunks;
  Segment segment;
  Arithmetic arithmetic;
  Ranks ranks;
  Sources sources;
};

unsigned width_of(const ExchangeCall& call) {
  auto bits = reinterpret_cast<std::uintptr_t>(call.input) | reinterpret_cast<std::uintptr_t>(call.output);
  for (const ExchangePart& part : call.gives) bits |= part.offset;
  for (const ExchangePart& part : call.takes) bits |= part.offset;
  bits |= call.reduced.own.offset | call.reduced.kept_at;
  if (bits % pack_bytes == 0) return pack_bytes;
  const std::size_t element = size_of(call.reduction.type);
  return bits % element == 0 ? static_cast<unsigned>(element) : 1;
}

}  // namespace

std::string name_of_exchange_kernel(DataType type) { return "hmc_mapped_" + std::string(name_of(type)); }

kernel::Loaded ExchangeKernel::kernel_of(int device, DataType type) {
  return kernels_.find(device, type, [&](kernel::Loaded& loaded) {
    loaded.load(api_, vendor_, [&](int on) { return image_(on, type); }, device, name_of_exchange_kernel(type).c_str());
  });
}

int ExchangeKernel::allocate_words(std::size_t bytes, void*& data) {
  return vendor_.clear(api_.allocate_host(&data, bytes, kernel::host_alloc_portable));
}

int ExchangeKernel::run(int index, const ExchangeCall& given, VendorStream stream) {
  const kernel::Loaded kernel = kernel_of(index, given.reduction.type);
  if (kernel.code != 0) return kernel.code;
  const ExchangeSegment segment = exchange_segment(given.ranks);
  Call call{.input = given.input,
            .output = given.output,
            .segments = {},
            .ended = given.ended,
            .gives = {},
            .takes = {},
            .own = {given.reduced.own.offset, given.reduced.own.bytes},
            .place = {given.reduced.kept_at, given.reduced.keeps ? 1ULL : 0ULL},
            .chunks = {given.first, given.shape.steps, given.shape.chunk, given.shape.lag},
            .segment = {segment.slot, segment.cells_at, segment.slots_at, segment.cells},
            .arithmetic = {given.reduction.scale, given.reduction.divisor, static_cast<unsigned>(given.reduction.op)},
            .ranks = {width_of(given), given.rank, given.ranks, given.reduced.collectors, given.shot},
            .sources = {given.reduced.sources, given.reduced.source}};
  std::ranges::copy(given.segments, call.segments);
  for (std::size_t r = 0; r < given.gives.size(); ++r) {
    call.gives[r] = {given.gives[r].offset, given.gives[r].bytes};
    call.takes[r] = {given.takes[r].offset, given.takes[r].bytes};
  }
  void* arguments[] = {&call};
  return vendor_.clear(
      api_.launch(kernel.function, given.shape.blocks, 1, 1, given.shape.threads, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace hmc
