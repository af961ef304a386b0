#include "device/reduce_exact.h"

#include <bit>

namespace hmc {
namespace {

constexpr unsigned mantissa_bits = 52;
constexpr std::uint64_t mantissa_mask = (std::uint64_t{1} << mantissa_bits) - 1, exponent_mask = 0x7ff;

}  // namespace

void ExactSum::add(double value) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t exponent = bits >> mantissa_bits & exponent_mask;
  if (exponent == exponent_mask) {
    special_ += value;
    is_special_ = true;
    return;
  }
  const std::uint64_t mantissa = (bits & mantissa_mask) | (exponent != 0 ? std::uint64_t{1} << mantissa_bits : 0);
  const std::uint64_t at = exponent != 0 ? exponent - 1 : 0;
  const unsigned shift = at % 64;
  const std::uint64_t parts[2] = {mantissa << shift, shift != 0 ? mantissa >> (64 - shift) : 0};
  const bool negative = bits >> 63 != 0;
  std::uint64_t carry = 0;
  for (std::size_t i = at / 64, part = 0; i < limbs && (part < 2 || carry != 0); ++i, ++part) {
    const std::uint64_t before = limb_[i], other = part < 2 ? parts[part] : 0;
    if (negative) {
      limb_[i] = before - other - carry;
      carry = before < other || (before == other && carry != 0) ? 1 : 0;
    } else {
      limb_[i] = before + other + carry;
      carry = limb_[i] < before || (limb_[i] == before && carry != 0) ? 1 : 0;
    }
  }
}

double ExactSum::rounded(bool to_odd) const noexcept {
  if (is_special_) return special_ == special_ ? special_ : std::bit_cast<double>(std::uint64_t{0x7ff8} << 48);
  std::uint64_t magnitude[limbs];
  const bool negative = limb_[limbs - 1] >> 63 != 0;
  std::uint64_t carry = negative ? 1 : 0;
  for (std::size_t i = 0; i < limbs; ++i) {
    magnitude[i] = (negative ? ~limb_[i] : limb_[i]) + carry;
    if (magnitude[i] != 0) carry = 0;
  }
  std::size_t top = limbs;
  while (top > 0 && magnitude[top - 1] == 0) --top;
  if (top == 0) return 0;
  const std::size_t highest = 64 * top - 1 - static_cast<unsigned>(std::countl_zero(magnitude[top - 1]));
  std::uint64_t bits = magnitude[0];  // exact, and encoded as it is, up to bit 52
  if (highest > mantissa_bits) {
    const std::size_t lowest = highest - mantissa_bits, limb = lowest / 64, shift = lowest % 64;
    std::uint64_t kept = magnitude[limb] >> shift;
    if (shift != 0 && limb + 1 < limbs) kept |= magnitude[limb + 1] << (64 - shift);
    const bool half = (magnitude[(lowest - 1) / 64] >> ((lowest - 1) % 64) & 1) != 0;
    bool below = (magnitude[(lowest - 1) / 64] & ((std::uint64_t{1} << ((lowest - 1) % 64)) - 1)) != 0;
    for (std::size_t i = 0; i < (lowest - 1) / 64; ++i) below = below || magnitude[i] != 0;
    // The leading bit of the mantissa adds one to the exponent, and so does a carry out of it.
    bits = (static_cast<std::uint64_t>(lowest) << mantissa_bits) + (kept & ((mantissa_mask << 1) | 1));
    if (to_odd) {
      if (half || below) bits |= 1;
    } else if (half && (below || (bits & 1) != 0)) {
      ++bits;
    }
    if (bits >> mantissa_bits >= exponent_mask) bits = exponent_mask << mantissa_bits;
  }
  return std::bit_cast<double>(bits | (negative ? std::uint64_t{1} << 63 : 0));
}

}  // namespace hmc
