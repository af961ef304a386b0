#include "layout/on_device.h"

#include <algorithm>
#include <string>
#include <vector>

#include "device/runtime.h"

namespace hmc {
namespace {

// A cache as numbers, with the tables that these refer to.
class Described {
 public:
  template <class Buffer>
  Described(const Layout& layout, const LayoutPages& pages, const Walk& walk, std::span<const Buffer> buffers) {
    for (const Buffer& buffer : buffers) buffers_.push_back(buffer.data());
    for (const std::uint64_t block : pages.blocks) blocks_.push_back(layout.map(LayoutAxis::block).offset(block));
    const auto map = [&](LayoutAxis axis) {
      const Layout::Map& from = layout.map(axis);
      return PageMap{from.part, from.outer, from.inner, from.buffer};
    };
    cache = {.buffers = buffers_,
             .bytes = static_cast<std::size_t>(layout.buffer_bytes()),
             .blocks = blocks_,
             .layer = map(LayoutAxis::layer),
             .kv = map(LayoutAxis::kv),
             .head = map(LayoutAxis::head),
             .token = map(LayoutAxis::token),
             .dim = map(LayoutAxis::dim),
             .first_layer = walk.layers.first - layout.layers().first,
             .first_head = walk.heads.first - layout.heads().first,
             .first_token = pages.first,
             .block_tokens = layout.extent(LayoutAxis::token),
             .type = layout.type()};
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  PageCache cache;

 private:
  std::vector<const void*> buffers_;
  std::vector<std::uint64_t> blocks_;
};

PageCall call_of(const PageCache& source, const Layout& layout, const Walk& walk, std::uint64_t tokens, std::uint64_t position) {
  const std::uint64_t dims = layout.extent(LayoutAxis::dim);
  PageCall call;
  call.source = source;
  call.layers = walk.layers.count;
  call.kvs = layout.extent(LayoutAxis::kv);
  call.heads = walk.heads.count;
  call.tokens = tokens;
  call.dims = dims;
  call.layer = walk.layers.first;
  call.head = walk.heads.first;
  call.position = position;
  call.keys = {dimension_keys(), static_cast<std::size_t>(layout.element() == 4 ? 2 * dims : dims)};
  return call;
}

Status run(const Device& device, const PageCall& call) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  DevicePages* const pages = runtime->compute().pages();
  if (pages == nullptr)
    return {Code::unsupported,
            "layout: HMC has no kernel for pages in the memory of " + device.str() + "; copy them to CPU memory"};
  return pages->run(device.index(), call);
}

}  // namespace

Result<Device> device_of(std::span<const std::span<const std::byte>> source, std::span<const std::span<std::byte>> target) {
  Device found = Device::cpu();
  bool first = true;
  const auto look = [&](const void* data, std::size_t bytes) -> Status {
    HMC_ASSIGN(const PointerInfo info, classify_pointer(data, bytes));
    if (!first && info.device != found) {
      return {Code::unsupported,
              "the arrays are of " + found.str() + " and of " + info.device.str() + "; copy them into the memory of one"};
    }
    found = info.device;
    first = false;
    return {};
  };
  for (const auto& buffer : source) HMC_TRY(look(buffer.data(), buffer.size()));
  for (const auto& buffer : target) HMC_TRY(look(buffer.data(), buffer.size()));
  return found;
}

Result<std::uint64_t> convert_on(const Device& device, const LayoutMove& move, const Walk& walk,
                                 std::span<const std::span<const std::byte>> source, std::span<const std::span<std::byte>> target,
                                 LayoutDigest digest) {
  const Described from(move.source, move.from, walk, source), to(move.target, move.to, walk, target);
  std::vector<float> factors;
  for (std::uint64_t layer = walk.layers.first; layer < walk.layers.first + walk.layers.count; ++layer) {
    for (std::uint64_t kv = 0; kv < move.source.extent(LayoutAxis::kv); ++kv) {
      factors.push_back(move.source.scale(layer - move.source.layers().first, kv) /
                        move.target.scale(layer - move.target.layers().first, kv));
    }
  }
  std::uint64_t sum = 0;
  PageCall call = call_of(from.cache, move.source, walk, move.tokens, move.position);
  call.target = to.cache;
  call.factors = factors;
  // A kernel digests what it reads: other elements than it writes only where it casts.
  const bool reads_other = move.source.type() != move.target.type() || std::ranges::any_of(factors, [](float f) { return f != 1; });
  const bool again = digest == LayoutDigest::target && reads_other;
  if (digest != LayoutDigest::none && !again) call.sums = {&sum, 1};
  HMC_TRY(run(device, call));
  if (!again) return sum;
  const LayoutSelection written{.layout = move.target,
                                .pages = move.to,
                                .tokens = move.tokens,
                                .position = move.position,
                                .layers = walk.layers,
                                .heads = walk.heads};
  HMC_ASSIGN(const Walk target_walk, walk_of(written));
  std::vector<std::span<const std::byte>> readable(target.begin(), target.end());
  HMC_ASSIGN(const auto sums, digest_on(device, written, target_walk, readable, false));
  return sums.front();
}

Result<std::vector<std::uint64_t>> digest_on(const Device& device, const LayoutSelection& selection, const Walk& walk,
                                             std::span<const std::span<const std::byte>> buffers, bool by_block) {
  const Described cache(selection.layout, selection.pages, walk, buffers);
  const std::uint64_t places = walk.layers.count * walk.heads.count * selection.pages.blocks.size();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(by_block ? places : 1));
  PageCall call = call_of(cache.cache, selection.layout, walk, selection.tokens, selection.position);
  call.sums = sums;
  call.by_block = by_block;
  HMC_TRY(run(device, call));
  return sums;
}

}  // namespace hmc
