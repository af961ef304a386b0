// How numbers are stored, and the type that they are computed in, for the instruction set that the including file is compiled for.
//
// Included by several files with different compiler flags: everything is in an unnamed namespace, and nothing of the standard
// library is called, because a linker may keep any one file's copy of an inline function for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace hmc {
namespace {

template <class T>
struct Plain {
  using Stored [[gnu::aligned(1), gnu::may_alias]] = T;
  using Wide = T;
  static Wide decode(T value) noexcept { return value; }
  static T encode(Wide value) noexcept { return value; }
};

struct Bfloat16 {
  using Stored [[gnu::aligned(1), gnu::may_alias]] = std::uint16_t;
  using Wide = float;
  static float decode(std::uint16_t value) noexcept { return __builtin_bit_cast(float, std::uint32_t{value} << 16); }
  static std::uint16_t encode(float value) noexcept {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40U;
    return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
};

// A float of 1 + Exponent + Mantissa bits with subnormal numbers. `last`: the code of the largest number.
template <class Code, unsigned Exponent, unsigned Mantissa, std::uint32_t Bias, std::uint32_t Last, std::uint32_t Beyond,
          std::uint32_t Nan, bool SignedZero>
struct Narrow {
  using Stored [[gnu::aligned(1), gnu::may_alias]] = Code;
  using Wide = float;
  static constexpr unsigned exponent = Exponent, mantissa = Mantissa;
  static constexpr std::uint32_t bias = Bias, last = Last, beyond = Beyond, nan = Nan;
  static constexpr bool signed_zero = SignedZero;
  static constexpr unsigned shift = 23 - Mantissa;
  static constexpr std::uint32_t sign_bit = 1U << (Exponent + Mantissa);

  static float decode(Code code) noexcept {
    const std::uint32_t sign = (code & sign_bit) << (31 - Exponent - Mantissa);
    const std::uint32_t magnitude = code & (sign_bit - 1);
    // Subnormal numbers from their integer mantissa: as subnormal f32 numbers they would be a hundred times slower.
    const float small =
        static_cast<float>(static_cast<std::int32_t>(magnitude)) * __builtin_bit_cast(float, (128 - Bias - Mantissa) << 23);
    const std::uint32_t normal = (magnitude << shift) + ((127 - Bias) << 23);
    std::uint32_t bits = magnitude >> Mantissa == 0 ? __builtin_bit_cast(std::uint32_t, small) : normal;
    if constexpr (SignedZero) {
      if constexpr (Beyond != Nan) bits = magnitude == Beyond ? 0x7f800000U : bits;
      bits = magnitude > Last && (Beyond == Nan || magnitude != Beyond) ? 0x7fc00000U : bits;
    } else {
      bits = code == Nan ? 0x7fc00000U : bits;
    }
    return __builtin_bit_cast(float, bits | sign);
  }

  static Code encode(float value) noexcept {
    const auto all = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t bits = all & 0x7fffffffU;
    const std::uint32_t sign = (all >> 31) << (Exponent + Mantissa);
    // Below the smallest normal number an addition rounds: the sum's last bit is worth the smallest subnormal number.
    constexpr std::uint32_t magic = (127 - Bias + 1 - Mantissa + 23) << 23;
    const float sum = __builtin_bit_cast(float, bits) + __builtin_bit_cast(float, magic);
    const std::uint32_t small = __builtin_bit_cast(std::uint32_t, sum) - magic;
    const std::uint32_t normal = (bits - ((127 - Bias) << 23) + ((1U << (shift - 1)) - 1) + ((bits >> shift) & 1U)) >> shift;
    std::uint32_t code = bits < ((128 - Bias) << 23) ? small : normal;
    code = code > Last ? Beyond : code;
    code = bits > 0x7f800000U ? Nan : code;
    if constexpr (SignedZero) return static_cast<Code>(code | sign);
    return static_cast<Code>(code == 0 || code == Nan ? code : code | sign);
  }
};
using Half = Narrow<std::uint16_t, 5, 10, 15, 0x7bff, 0x7c00, 0x7e00, true>;
using Float8E4m3fn = Narrow<std::uint8_t, 4, 3, 7, 0x7e, 0x7f, 0x7f, true>;
using Float8E4m3fnuz = Narrow<std::uint8_t, 4, 3, 8, 0x7f, 0x80, 0x80, false>;
using Float8E5m2 = Narrow<std::uint8_t, 5, 2, 15, 0x7b, 0x7c, 0x7e, true>;

// ---- many elements ----

#if defined(__F16C__) && defined(__AVX2__)
// Bfloat16::encode of eight values.
inline __m128i bfloat16_codes(__m256 values) noexcept {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(upper, _mm256_set1_epi32(1)));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i codes = _mm256_blendv_epi8(rounded, nan, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
}
#endif

#if defined(__F16C__) && defined(__AVX2__)
inline __m256i words(std::uint32_t value) noexcept { return _mm256_set1_epi32(static_cast<int>(value)); }
inline __m256i chosen_where(__m256i mask, __m256i yes, __m256i no) noexcept { return _mm256_blendv_epi8(no, yes, mask); }

// Narrow::decode of eight codes of 8 bits.
template <class Format>
__m256 narrow_values(const void* from) noexcept {
  constexpr unsigned e = Format::exponent, m = Format::mantissa;
  const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, words(Format::sign_bit)), 31 - e - m);
  const __m256i magnitude = _mm256_and_si256(codes, words(Format::sign_bit - 1));
  const __m256 unit = _mm256_castsi256_ps(words((128 - Format::bias - m) << 23));
  const __m256i small = _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), unit));
  const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, Format::shift), words((127 - Format::bias) << 23));
  __m256i bits = chosen_where(_mm256_cmpgt_epi32(words(1U << m), magnitude), small, normal);
  if constexpr (Format::signed_zero) {
    bits = chosen_where(_mm256_cmpgt_epi32(magnitude, words(Format::last)), words(0x7fc00000U), bits);
    if constexpr (Format::beyond != Format::nan)
      bits = chosen_where(_mm256_cmpeq_epi32(magnitude, words(Format::beyond)), words(0x7f800000U), bits);
  } else {
    bits = chosen_where(_mm256_cmpeq_epi32(codes, words(Format::nan)), words(0x7fc00000U), bits);
  }
  return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
}

// Narrow::encode of eight values to codes of 8 bits.
template <class Format>
void narrow_codes(void* to, __m256 values) noexcept {
  constexpr unsigned e = Format::exponent, m = Format::mantissa, shift = Format::shift;
  const __m256i all = _mm256_castps_si256(values);
  const __m256i bits = _mm256_and_si256(all, words(0x7fffffffU));
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(all, 31), e + m);
  const __m256i magic = words((127 - Format::bias + 1 - m + 23) << 23);
  const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(bits), _mm256_castsi256_ps(magic));
  const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(sum), magic);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, shift), words(1));
  const __m256i half = words((1U << (shift - 1)) - 1 - ((127 - Format::bias) << 23));
  const __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), even), shift);
  __m256i codes = chosen_where(_mm256_cmpgt_epi32(words((128 - Format::bias) << 23), bits), small, normal);
  codes = chosen_where(_mm256_cmpgt_epi32(codes, words(Format::last)), words(Format::beyond), codes);
  codes = chosen_where(_mm256_cmpgt_epi32(bits, words(0x7f800000U)), words(Format::nan), codes);
  __m256i signs = sign;
  if constexpr (!Format::signed_zero) {
    const __m256i plain = _mm256_or_si256(_mm256_cmpeq_epi32(codes, words(0)), _mm256_cmpeq_epi32(codes, words(Format::nan)));
    signs = _mm256_andnot_si256(plain, sign);
  }
  codes = _mm256_or_si256(codes, signs);
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
}

template <class Format>
constexpr bool is_narrow8 =
    std::is_same_v<Format, Float8E4m3fn> || std::is_same_v<Format, Float8E4m3fnuz> || std::is_same_v<Format, Float8E5m2>;
#endif

template <class Format>
void load(typename Format::Wide* __restrict to, const typename Format::Stored* __restrict from, std::size_t count) noexcept {
  std::size_t i = 0;
#if defined(__F16C__) && defined(__AVX2__)
  if constexpr (std::is_same_v<Format, Half> || std::is_same_v<Format, Bfloat16>) {
    for (; i + 8 <= count; i += 8) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      if constexpr (std::is_same_v<Format, Half>) {
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(codes));
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
      }
    }
  }
  if constexpr (is_narrow8<Format>) {
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, narrow_values<Format>(from + i));
  }
#endif
  for (; i < count; ++i) to[i] = Format::decode(from[i]);
}

template <class Format>
void store(typename Format::Stored* __restrict to, const typename Format::Wide* __restrict from, std::size_t count) noexcept {
  std::size_t i = 0;
#if defined(__F16C__) && defined(__AVX2__)
  if constexpr (std::is_same_v<Format, Half> || std::is_same_v<Format, Bfloat16>) {
    for (; i + 8 <= count; i += 8) {
      const __m256 values = _mm256_loadu_ps(from + i);
      __m128i codes;
      if constexpr (std::is_same_v<Format, Half>) {
        codes = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
      } else {
        codes = bfloat16_codes(values);
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), codes);
    }
  }
  if constexpr (is_narrow8<Format>) {
    for (; i + 8 <= count; i += 8) narrow_codes<Format>(to + i, _mm256_loadu_ps(from + i));
  }
#endif
  for (; i < count; ++i) to[i] = Format::encode(from[i]);
}

}  // namespace
}  // namespace hmc
