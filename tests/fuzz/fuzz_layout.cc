// Descriptions of KV caches, as a peer sends them: what is read describes itself, no element lies outside the buffers, and a small
// cache converts and keeps its digest.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

#include "hmc/layout.h"

namespace {

using namespace hmc;

void check(bool holds) {
  if (!holds) std::abort();
}

std::uint64_t last_byte(const Layout& layout) {
  std::uint64_t end = layout.element();
  for (std::size_t axis = 0; axis < layout_axes; ++axis) {
    const auto which = static_cast<LayoutAxis>(axis);
    const Layout::Map& map = layout.map(which);
    const std::uint64_t last = layout.extent(which) - 1;
    end += std::max(map.offset(last), map.part > 1 ? last / map.part * map.outer + (map.part - 1) * map.inner : 0);
  }
  return end;
}

void convert(const Layout& layout) {
  std::vector<std::vector<std::byte>> memory(layout.buffers(), std::vector<std::byte>(layout.buffer_bytes()));
  std::vector<std::span<const std::byte>> source;
  std::uint8_t value = 0;
  for (auto& buffer : memory) {
    for (std::byte& byte : buffer) byte = static_cast<std::byte>(value += 59);
    source.emplace_back(buffer);
  }
  const auto packed = layout.packed(layout.layers(), layout.heads(), layout.extent(LayoutAxis::block));
  check(packed.ok());
  std::vector<std::byte> copy(packed->buffer_bytes());
  std::vector<std::uint64_t> blocks(layout.extent(LayoutAxis::block));
  std::iota(blocks.begin(), blocks.end(), 0U);
  const std::uint64_t tokens = blocks.size() * layout.extent(LayoutAxis::token);
  const LayoutMove move{layout, {blocks, 0}, *packed, {blocks, 0}, tokens, 0, {}, {}};
  const std::span<std::byte> target(copy);
  const auto digest = layout_convert(move, source, {&target, 1}, {LayoutDigest::source});
  check(digest.ok());
  const std::span<const std::byte> read(copy);
  check(layout_digest({*packed, {blocks, 0}, tokens, 0, {}, {}}, {&read, 1}).value() == digest.value());
  check(layout_digest({layout, {blocks, 0}, tokens, 0, {}, {}}, source).value() == digest.value());
  const auto runs = layout_runs(move);
  check(runs.ok());
  std::uint64_t bytes = 0;
  for (const LayoutRuns& run : runs.value()) bytes += run.bytes * run.source_offsets.size();
  check(bytes == copy.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto first = Layout::parse({reinterpret_cast<const char*>(data), size});
  if (!first.ok()) {
    check(first.status().code() == Code::invalid_argument);
    return 0;
  }
  const auto second = Layout::parse(first->str());
  check(second.ok() && *second == *first && second->str() == first->str());
  check(last_byte(*first) == first->buffer_bytes());
  if (first->buffer_bytes() * first->buffers() <= 1U << 14 && first->extent(LayoutAxis::block) <= 1U << 12) convert(*first);
  return 0;
}
