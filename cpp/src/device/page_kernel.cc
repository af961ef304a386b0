#include "device/page_kernel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace hmc {
namespace {

constexpr unsigned threads = 256;
constexpr std::size_t groups_per_processor = 8;
constexpr std::size_t most_groups = std::size_t{1} << 16;
constexpr unsigned most_rows = 256;  // of a group at a time, as in the kernel
constexpr unsigned fewest_rows = 16;
// Where single elements change places the rows of a group stay in the first-level cache.
constexpr unsigned most_scattered_rows = 64;
constexpr std::size_t access_bytes = 16;
constexpr std::size_t smaller_access_bytes = 8;
constexpr unsigned lanes_of_columns = 4;  // where neighbouring threads take neighbouring rows
constexpr unsigned lanes_of_rows = 16;

// As in kernels/pages.cu.
struct Cache {
  const void* buffers;
  const void* blocks;
  PageMap layer, kv, head, token, dim;
  unsigned long long first_layer, first_head, first_token, block_tokens;
  unsigned long long buffers_count, buffer_bytes, blocks_count;
};
struct Order {
  std::array<unsigned long long, 4> counts;
  unsigned layer, kv, head, token;
};
struct Tables {
  const void* keys;
  const void* factors;
  void* sums;
};
struct First {
  unsigned long long layer, head, position;
};
struct Shape {
  unsigned dims, elements, lanes, at_once, by_rows, digests, type;
};
struct Call {
  Cache source, target;
  Order order;
  Tables tables;
  unsigned long long rows, kvs, heads;
  First first;
  unsigned long long entries;
  Shape shape;
};

// All bits of what an element's address is made of, but its dimension's part.
std::uint64_t bits_of(const PageCache& cache) {
  std::uint64_t bits = 0;
  for (const void* buffer : cache.buffers) bits |= reinterpret_cast<std::uintptr_t>(buffer);
  for (const std::uint64_t block : cache.blocks) bits |= block;
  for (const PageMap* map : {&cache.layer, &cache.kv, &cache.head, &cache.token}) {
    bits |= map->outer;
    if (map->part != 1) bits |= map->inner;
  }
  return cache.dim.part == 1 ? bits : bits | cache.dim.outer;
}

// Whether each `elements` dimensions lie side by side, at a multiple of their size.
bool takes(const PageCache& cache, std::uint64_t dims, std::size_t elements) {
  const std::size_t size = size_of(cache.type);
  if (bits_of(cache) % (elements * size) != 0) return false;
  const std::uint64_t run = cache.dim.part == 1 ? dims : cache.dim.part;
  return elements == 1 || (cache.dim.step() == size && dims % elements == 0 && run % elements == 0);
}

// Elements of an access; 0: there is none.
std::size_t elements_of(const PageCall& call) {
  const std::size_t size = size_of(call.source.type);
  const auto both = [&](std::size_t elements) {
    return takes(call.source, call.dims, elements) && (!call.target || takes(*call.target, call.dims, elements));
  };
  if (!call.target) {
    for (const std::size_t bytes : {access_bytes, smaller_access_bytes}) {
      if (both(bytes / size)) return bytes / size;
    }
  } else if (const std::size_t most = std::max(size, size_of(call.target->type)) == 4 ? 4 : 8; both(most)) {
    return most;
  }
  return both(1) ? 1 : 0;
}

// Bytes from one access of a row to the next.
std::uint64_t access_step(const PageCache& cache, std::size_t elements) {
  const PageMap& dim = cache.dim;
  return dim.part == elements && dim.part != 1 ? dim.outer : elements * dim.step();
}

// Along the cache's memory, tokens first where these lie closest.
Order order_of(const PageCall& call, const PageCache& cache, bool tokens_first) {
  struct Loop {
    unsigned Order::* axis;
    std::uint64_t count, stride;
  };
  const auto stride = [](const PageMap& map) { return map.buffer != 0 ? std::numeric_limits<std::uint64_t>::max() : map.step(); };
  std::array loops{Loop{&Order::token, call.tokens, tokens_first ? 0 : stride(cache.token)},
                   Loop{&Order::kv, call.kvs, stride(cache.kv)}, Loop{&Order::head, call.heads, stride(cache.head)},
                   Loop{&Order::layer, call.layers, stride(cache.layer)}};
  std::ranges::stable_sort(loops, {}, &Loop::stride);
  Order order{};
  for (unsigned i = 0; i < loops.size(); ++i) {
    order.counts[i] = loops[i].count;
    order.*loops[i].axis = i;
  }
  return order;
}

Cache cache_of(const PageCache& cache, const void* buffers, const void* blocks) {
  return {.buffers = buffers,
          .blocks = blocks,
          .layer = cache.layer,
          .kv = cache.kv,
          .head = cache.head,
          .token = cache.token,
          .dim = cache.dim,
          .first_layer = cache.first_layer,
          .first_head = cache.first_head,
          .first_token = cache.first_token,
          .block_tokens = cache.block_tokens,
          .buffers_count = cache.buffers.size(),
          .buffer_bytes = cache.bytes,
          .blocks_count = cache.blocks.size()};
}

PageKernelId id_of(const PageCall& call) {
  if (call.target) return {true, call.source.type};
  const std::size_t size = size_of(call.source.type);
  return {false, size == 4 ? DataType::f32 : size == 2 ? DataType::bf16 : DataType::f8_e4m3fn};
}

}  // namespace

std::string PageKernelId::name() const {
  return converts ? "hmc_convert_" + std::string(name_of(type)) : "hmc_digest_" + std::to_string(size_of(type));
}

std::string PageKernelId::definition() const {
  return converts ? "#define HMC_CONVERT_" + std::string(name_of(type)) : "#define HMC_DIGEST_" + std::to_string(size_of(type));
}

kernel::Loaded PageKernel::kernel_of(int device, const PageCall& call) {
  const PageKernelId id = id_of(call);
  return (id.converts ? conversions_ : digests_).find(device, id.type, [&](kernel::Loaded& loaded) {
    loaded.load(api_, vendor_, [&](int on) { return image_(on, id); }, device, id.name().c_str());
  });
}

bool PageKernel::prepared(int index, const PageCall& call) {
  const PageKernelId id = id_of(call);
  return elements_of(call) == 0 || (id.converts ? conversions_ : digests_).found(index, id.type);
}

int PageKernel::prepare(int index, const PageCall& call) {
  return elements_of(call) == 0 ? vendor_.unsupported : kernel_of(index, call).code;
}

int PageKernel::run(int index, const PageCall& call, const PageTables& tables, VendorStream stream) {
  const kernel::Loaded kernel = kernel_of(index, call);
  if (kernel.code != 0) return kernel.code;
  const std::size_t elements = elements_of(call);
  if (elements == 0) return vendor_.unsupported;
  const PageCache& lead = call.target ? *call.target : call.source;  // in whose order the rows are taken
  const bool by_rows = lead.token.step() < access_step(lead, elements);
  const auto table = [&](PageTable which) { return tables[static_cast<std::size_t>(which)]; };
  const unsigned lanes = std::min(by_rows ? lanes_of_columns : lanes_of_rows, static_cast<unsigned>(call.dims / elements));
  Call made{.source = cache_of(call.source, table(PageTable::source_buffers), table(PageTable::source_blocks)),
            .target = {},
            .order = order_of(call, lead, by_rows),
            .tables = {table(PageTable::keys), table(PageTable::factors), table(PageTable::sums)},
            .rows = call.layers * call.kvs * call.heads * call.tokens,
            .kvs = call.kvs,
            .heads = call.heads,
            .first = {call.layer, call.head, call.position},
            .entries = call.by_block ? call.source.blocks.size() : 0,
            .shape = {.dims = static_cast<unsigned>(call.dims),
                      .elements = static_cast<unsigned>(elements),
                      .lanes = std::bit_ceil(lanes),
                      .at_once = call.target && elements == 1 ? most_scattered_rows : most_rows,
                      .by_rows = by_rows ? 1U : 0U,
                      .digests = call.sums.empty() ? 0U : 1U,
                      .type = static_cast<unsigned>(call.target ? call.target->type : call.source.type)}};
  if (call.target) made.target = cache_of(*call.target, table(PageTable::target_buffers), table(PageTable::target_blocks));
  const std::size_t groups = kernel.processors * groups_per_processor;
  unsigned& at_once = made.shape.at_once;
  while (at_once > fewest_rows && made.rows / at_once < groups) at_once /= 2;
  void* arguments[] = {&made};
  const std::size_t parts = static_cast<std::size_t>((made.rows + at_once - 1) / at_once);
  return vendor_.clear(api_.launch(kernel.function, static_cast<unsigned>(std::clamp<std::size_t>(parts, 1, most_groups)), 1, 1,
                                   threads, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace hmc
