#include "collective/call.h"

namespace hmc {
namespace {

constexpr unsigned mantissa_bits = 10;

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
  }
  return "an unknown collective";
}

std::uint32_t encode_call(CallKind kind, std::uint64_t block) noexcept {
  std::uint32_t shift = 0;
  for (; block >> mantissa_bits != 0; block >>= 1) ++shift;
  return static_cast<std::uint32_t>(kind) | static_cast<std::uint32_t>(block) << 8 | shift << (8 + mantissa_bits);
}

std::string describe_call(std::uint32_t call) {
  const auto kind = static_cast<CallKind>(call & 0xff);
  std::string text(name_of(kind));
  if (kind != CallKind::all_to_all && kind != CallKind::all_to_all_relayed) return text;
  const std::uint64_t mantissa = (call >> 8) & ((1U << mantissa_bits) - 1);
  const unsigned shift = (call >> (8 + mantissa_bits)) & 63;
  return text + " with blocks of " + (shift > 0 ? "about " : "") + std::to_string(mantissa << shift) + " bytes";
}

}  // namespace hmc
