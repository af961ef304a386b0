#include "collective/call.h"

#include <algorithm>
#include <array>

namespace hmc {
namespace {

constexpr unsigned mantissa_bits = 10;
// Operations of exact reductions are numbered behind the others.
constexpr std::array exact_ops{ReduceOp::sum, ReduceOp::avg, ReduceOp::premul_sum};

std::uint32_t operation_of(const Reduction& reduction) noexcept {
  if (!reduction.exact) return static_cast<std::uint32_t>(reduction.op);
  const auto* const at = std::ranges::find(exact_ops, reduction.op);
  return static_cast<std::uint32_t>(reduce_ops + static_cast<std::size_t>(at - exact_ops.begin()));
}

// Empty: a peer's number that is none.
std::string operation_text(std::uint32_t number) {
  if (number < reduce_ops) return std::string(name_of(static_cast<ReduceOp>(number)));
  if (number - reduce_ops >= exact_ops.size()) return {};
  return "exact " + std::string(name_of(exact_ops[number - reduce_ops]));
}

std::string without_algorithm(std::uint32_t call) {
  const CallKind kind = kind_of(call);
  std::string text(name_of(kind));
  if (reduces(kind)) {
    const std::uint32_t type = (call >> 8) & 15;
    const std::string operation = operation_text((call >> 12) & 15);
    if (type >= data_types || operation.empty()) return text;
    return text + " of " + std::string(name_of(static_cast<DataType>(type))) + ", " + operation;
  }
  if (kind != CallKind::all_to_all && kind != CallKind::all_to_all_relayed) return text;
  const std::uint64_t mantissa = (call >> 8) & ((1U << mantissa_bits) - 1);
  const unsigned shift = (call >> (8 + mantissa_bits)) & 63;
  return text + " with blocks of " + (shift > 0 ? "about " : "") + std::to_string(mantissa << shift) + " bytes";
}

// Each number mixed in by the finaliser of splitmix64 (Steele, Lea, Flood 2014): every bit of it reaches every bit of the digest.
std::uint32_t digest(std::span<const std::uint64_t> numbers) noexcept {
  std::uint64_t hash = numbers.size();
  for (const std::uint64_t number : numbers) {
    hash = (hash ^ number) + 0x9e3779b97f4a7c15;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  }
  return static_cast<std::uint32_t>(hash);
}

}  // namespace

std::string_view name_of(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::barrier:
      return "barrier";
    case CallKind::all_to_all:
    case CallKind::all_to_all_relayed:
      return "all_to_all";
    case CallKind::all_to_all_v:
      return "all_to_all_v";
    case CallKind::exchange:
      return "exchange";
    case CallKind::exchange_bytes:
      return "exchange_bytes";
    case CallKind::split:
      return "split";
    case CallKind::topology:
      return "topology";
    case CallKind::measure:
      return "measure";
    case CallKind::share_memory:
      return "share_memory";
    case CallKind::all_reduce:
      return "all_reduce";
    case CallKind::reduce_scatter:
      return "reduce_scatter";
    case CallKind::reduce:
      return "reduce";
    case CallKind::all_gather:
      return "all_gather";
    case CallKind::broadcast:
      return "broadcast";
    case CallKind::gather:
      return "gather";
    case CallKind::scatter:
      return "scatter";
  }
  return "an unknown collective";
}

std::uint32_t encode_call(CallKind kind, std::uint64_t block, Algorithm algorithm) noexcept {
  std::uint32_t shift = 0;
  for (; block >> mantissa_bits != 0; block >>= 1) ++shift;
  return code_of(kind, algorithm) | static_cast<std::uint32_t>(block) << 8 | shift << (8 + mantissa_bits);
}

std::uint32_t encode_call(CallKind kind, std::span<const std::uint64_t> alike, Algorithm algorithm) noexcept {
  return with_digest(code_of(kind, algorithm), alike);
}

std::uint32_t encode_call(CallKind kind, const Reduction& reduction, std::span<const std::uint64_t> alike,
                          Algorithm algorithm) noexcept {
  const std::uint32_t what = static_cast<std::uint32_t>(reduction.type) | operation_of(reduction) << 4;
  return with_digest(code_of(kind, algorithm) | what << 8, alike);
}

std::uint32_t without_digest(std::uint32_t call) noexcept { return call & (reduces(kind_of(call)) ? 0xffff : 0xff); }

std::uint32_t with_digest(std::uint32_t call, std::span<const std::uint64_t> alike) noexcept {
  const unsigned shift = reduces(kind_of(call)) ? 16 : 8;
  return without_digest(call) | (digest(alike) << shift & max_call);
}

std::string describe_call(std::uint32_t call) {
  const std::string_view algorithm = name_of(kind_of(call), algorithm_of(call));
  return without_algorithm(call) + (algorithm.empty() ? "" : ", by \"" + std::string(algorithm) + "\"");
}

}  // namespace hmc
