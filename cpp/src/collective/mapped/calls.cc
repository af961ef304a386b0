#include "collective/mapped/calls.h"

#include <algorithm>
#include <cstdint>

#include "collective/fused/one_shot.h"

namespace hmc::mapped {
namespace {

// Measured on 2 x H200: through cells such a call takes 14 us, in two exchanges 20 us.
constexpr std::uint64_t whole_inputs = 2 << 20;
// Between two H200, a broadcast of 16 MiB behind a stream took 107 us by messages and 64 us by the kernel; blocks of 128 MiB and
// more are faster by messages. In between it was not measured.
constexpr std::uint64_t long_block = 32 << 20;
constexpr std::uint64_t pack = 16;  // bytes that a thread moves at a time
// Measured on 4 x H200: a broadcast of 16 MiB took 86 us in five steps, 89 us in three, 99 us in twelve; other calls gained
// nothing.
constexpr std::uint64_t broadcast_steps = 5;

// As kernels move packs, parts that begin at one are as fast as their memory is.
std::uint64_t share_of(std::uint64_t bytes, std::uint32_t ranks) noexcept { return (bytes / ranks + pack - 1) / pack * pack; }
ExchangePart part_of(std::uint64_t bytes, std::uint64_t each, std::uint32_t index, bool last) noexcept {
  const std::uint64_t at = std::min(bytes, each * index), end = last ? bytes : std::min(bytes, at + each);
  return {at, end - at};
}

// The root sends each byte once: it gives every other rank a part, which that one passes on.
ExchangeCall divided_broadcast(std::uint32_t rank, std::uint32_t ranks, std::uint32_t root, std::uint64_t bytes) noexcept {
  ExchangeCall call;
  call.rank = rank;
  call.ranks = ranks;
  call.reduced.sources = 1;
  call.reduced.source = root;
  const std::uint64_t each = share_of(bytes, ranks - 1);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r == root) continue;
    const std::uint32_t index = r < root ? r : r - 1;
    const ExchangePart part = part_of(bytes, each, index, index + 2 == ranks);
    if (rank == root) call.gives[r] = part;
    if (rank != root && r != rank) call.takes[r] = part;
    if (r == rank) call.reduced.own = part;
    call.reduced.collectors |= 1U << r;
  }
  call.reduced.keeps = rank != root;
  call.reduced.kept_at = call.reduced.own.offset;
  call.shape = exchange_shape(std::max(each, bytes - std::min(bytes, each * (ranks - 2))), ranks, false, broadcast_steps);
  return call;
}

ExchangePart as_exchanged(const Part& part) noexcept { return {part.offset, part.bytes}; }

}  // namespace

std::uint64_t most_whole_bytes(std::uint32_t ranks) noexcept { return whole_inputs / (ranks - 1); }

bool carries(CallKind kind, std::uint32_t ranks, std::uint64_t bytes) noexcept {
  if (ranks > most_exchange_ranks || !fused::may_carry(kind)) return false;
  return reduces(kind) || ranks > 2 || (kind == CallKind::broadcast ? bytes : bytes / ranks) <= long_block;
}

ExchangeCall reduction(std::uint32_t rank, std::uint32_t ranks, const fused::Plan& plan) noexcept {
  ExchangeCall call;
  call.rank = rank;
  call.ranks = ranks;
  call.reduced.sources = ranks;
  std::uint64_t largest = 0, total = 0;
  for (const Part& part : plan.parts) {
    largest = std::max(largest, part.bytes);
    total += part.bytes;
  }
  const auto collects = [&](std::uint32_t r) { return plan.all_collect || plan.root == r; };
  const bool scatters = !plan.all_collect && !plan.root;
  if (!scatters && total <= most_whole_bytes(ranks)) {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (collects(r)) call.gives[r] = {0, total};
    }
    call.reduced.own = call.gives[rank];
    call.reduced.keeps = collects(rank);
    call.shape = exchange_shape(total, ranks, true);
    return call;
  }
  const std::uint64_t each = share_of(total, ranks);
  if (!scatters) largest = std::max(each, total - std::min(total, each * (ranks - 1)));
  for (std::uint32_t r = 0; r < ranks; ++r) {
    call.gives[r] = scatters ? as_exchanged(plan.parts[r]) : part_of(total, each, r, r + 1 == ranks);
    if (collects(r)) call.reduced.collectors |= 1U << r;
  }
  if (collects(rank)) call.takes = call.gives;
  call.reduced.own = call.gives[rank];
  call.reduced.keeps = scatters || collects(rank);
  call.reduced.kept_at = scatters ? plan.keeps_at : call.reduced.own.offset;
  call.shape = exchange_shape(largest, ranks, scatters);
  return call;
}

ExchangeCall spread(std::uint32_t rank, std::uint32_t ranks, const fused::SpreadPlan& plan) noexcept {
  if (plan.root && ranks > 2 && plan.longest > most_whole_bytes(ranks))
    return divided_broadcast(rank, ranks, *plan.root, plan.longest);
  ExchangeCall call;
  call.rank = rank;
  call.ranks = ranks;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    call.gives[r] = as_exchanged(plan.given_to(r));
    call.takes[r] = as_exchanged(plan.taken_from(r));
  }
  call.shape = exchange_shape(plan.longest, ranks, true);
  return call;
}

DataType moved_type(const ExchangeCall& call, const void* input, const void* output) noexcept {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(input) | reinterpret_cast<std::uintptr_t>(output) | call.reduced.kept_at |
                       call.reduced.own.offset | call.reduced.own.bytes;
  for (std::uint32_t r = 0; r < call.ranks; ++r)
    bits |= call.gives[r].offset | call.gives[r].bytes | call.takes[r].offset | call.takes[r].bytes;
  for (const DataType type : {DataType::u64, DataType::u32, DataType::u16}) {
    if (bits % size_of(type) == 0) return type;
  }
  return DataType::u8;
}

}  // namespace hmc::mapped
