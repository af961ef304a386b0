#include "collective/mapped/calls.h"

#include <algorithm>

namespace hmc::mapped {
namespace {

// Measured on 2 x H100.
constexpr std::uint64_t whole_inputs = 1 << 20;
constexpr std::uint64_t pack = 16;  // bytes that a thread moves at a time

}  // namespace

std::uint64_t most_whole_bytes(std::uint32_t ranks) noexcept { return whole_inputs / (ranks - 1); }

ExchangeCall exchange_call(std::uint32_t rank, std::uint32_t ranks, const fused::Plan& plan) noexcept {
  ExchangeCall call;
  call.rank = rank;
  call.ranks = ranks;
  std::uint64_t largest = 0, total = 0;
  for (const Part& part : plan.parts) {
    largest = std::max(largest, part.bytes);
    total += part.bytes;
  }
  const auto collects = [&](std::uint32_t r) { return plan.all_collect || plan.root == r; };
  const bool scatters = !plan.all_collect && !plan.root;
  if (!scatters && total <= most_whole_bytes(ranks)) {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (collects(r)) call.parts[r] = {0, total};
    }
    call.own = call.parts[rank];
    call.keeps = collects(rank);
    call.shape = exchange_shape(total, ranks, true);
    return call;
  }
  // Kernels move packs: parts that begin at one are as fast as their memory is.
  const std::uint64_t each = (total / ranks + pack - 1) / pack * pack;
  if (!scatters) largest = std::max(each, total - std::min(total, each * (ranks - 1)));
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const std::uint64_t at = std::min(total, each * r), end = r + 1 == ranks ? total : std::min(total, at + each);
    call.parts[r] = scatters ? ExchangePart{plan.parts[r].offset, plan.parts[r].bytes} : ExchangePart{at, end - at};
    if (collects(r)) call.collectors |= 1U << r;
  }
  call.own = call.parts[rank];
  call.keeps = scatters || collects(rank);
  call.kept_at = scatters ? plan.keeps_at : call.own.offset;
  call.shape = exchange_shape(largest, ranks, scatters);
  return call;
}

}  // namespace hmc::mapped
