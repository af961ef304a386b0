#include "collective/call.h"

namespace hmc {
namespace {

constexpr unsigned mantissa_bits = 10;

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

std::uint32_t encode_call(CallKind kind, std::uint64_t block) noexcept {
  std::uint32_t shift = 0;
  for (; block >> mantissa_bits != 0; block >>= 1) ++shift;
  return static_cast<std::uint32_t>(kind) | static_cast<std::uint32_t>(block) << 8 | shift << (8 + mantissa_bits);
}

std::uint32_t encode_call(CallKind kind, std::span<const std::uint64_t> alike) noexcept {
  return static_cast<std::uint32_t>(kind) | (digest(alike) & 0xffff) << 8;
}

std::uint32_t encode_call(CallKind kind, const Reduction& reduction, std::span<const std::uint64_t> alike) noexcept {
  const auto what = static_cast<std::uint32_t>(reduction.type) | static_cast<std::uint32_t>(reduction.op) << 4;
  return static_cast<std::uint32_t>(kind) | what << 8 | (digest(alike) & 0xff) << 16;
}

std::string describe_call(std::uint32_t call) {
  const auto kind = static_cast<CallKind>(call & 0xff);
  std::string text(name_of(kind));
  if (reduces(kind)) {
    const std::uint32_t type = (call >> 8) & 15, op = (call >> 12) & 15;
    if (type >= data_types || op >= reduce_ops) return text;
    return text + " of " + std::string(name_of(static_cast<DataType>(type))) + ", " +
           std::string(name_of(static_cast<ReduceOp>(op)));
  }
  if (kind != CallKind::all_to_all && kind != CallKind::all_to_all_relayed) return text;
  const std::uint64_t mantissa = (call >> 8) & ((1U << mantissa_bits) - 1);
  const unsigned shift = (call >> (8 + mantissa_bits)) & 63;
  return text + " with blocks of " + (shift > 0 ? "about " : "") + std::to_string(mantissa << shift) + " bytes";
}

}  // namespace hmc
