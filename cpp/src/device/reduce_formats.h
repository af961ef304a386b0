// How a reduction's elements are stored and the vector registers that they are computed in, for the instruction set that the
// including file is compiled for.
//
// Included by several files with different compiler flags: everything is in an unnamed namespace (reduce_loops.h says why).
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace hmc {
namespace {

// ---- registers: what one step loads, computes and stores ----

#if defined(__AVX2__)
constexpr std::size_t register_bytes = 32;
#else
constexpr std::size_t register_bytes = 16;
#endif

template <class T>
struct VectorOf {
  using Type [[gnu::vector_size(register_bytes)]] = T;
};
template <class T>
using Vector = typename VectorOf<T>::Type;
using Words = Vector<std::uint32_t>;
using SignedWords = Vector<std::int32_t>;
using Floats = Vector<float>;
constexpr std::size_t words = register_bytes / 4;

// Not memcpy: compilers move a register's bytes in halves over the stack.
template <class T>
inline Vector<T> read(const void* from) noexcept {
  using Anywhere [[gnu::vector_size(register_bytes), gnu::aligned(1), gnu::may_alias]] = T;
  return *static_cast<const Anywhere*>(from);
}
template <class T>
inline void write(void* to, Vector<T> value) noexcept {
  using Anywhere [[gnu::vector_size(register_bytes), gnu::aligned(1), gnu::may_alias]] = T;
  *static_cast<Anywhere*>(to) = value;
}

template <class To, class From>
inline To bits(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}
// Of a mask as comparisons make it.
inline Words select(SignedWords mask, Words yes, Words no) noexcept {
  const Words chosen = bits<Words>(mask);
  return (chosen & yes) | (~chosen & no);
}

// ---- formats: how elements are stored, and the registers that they are computed in ----
//
// load() and store() move `step` elements. Unaligned.

template <class T>
struct Plain {
  using Stored [[gnu::aligned(1), gnu::may_alias]] = T;
  using Lane = T;
  static constexpr std::size_t step = register_bytes / sizeof(T), registers = 1;
  struct Registers {
    Vector<T> part[1];
  };
  static Registers load(const void* from) noexcept { return {{read<T>(from)}}; }
  static void store(void* to, const Registers& from) noexcept { write<T>(to, from.part[0]); }
};

// Two elements are a word: the even ones are shifted up, the odd ones are masked, so that nothing crosses lanes.
struct Bfloat16 {
  using Stored [[gnu::aligned(1), gnu::may_alias]] = std::uint16_t;
  using Lane = float;
  static constexpr std::size_t step = 2 * words, registers = 2;
  struct Registers {
    Floats part[2];
  };
  static Registers load(const void* from) noexcept {
    const Words pairs = read<std::uint32_t>(from);
    return {{bits<Floats>(pairs << 16), bits<Floats>(pairs & 0xffff0000U)}};
  }
  static void store(void* to, const Registers& from) noexcept {
    write<std::uint32_t>(to, (encode(from.part[0]) >> 16) | (encode(from.part[1]) & 0xffff0000U));
  }

 private:
  // The element is the upper half of each word.
  static Words encode(Floats value) noexcept {
    const Words all = bits<Words>(value);
    const Words rounded = all + 0x7fffU + ((all >> 16) & 1U);
    return select(value != value, all | 0x400000U, rounded);
  }
};

// Codes to words and back. The words are codes, so narrowing never saturates.
#if defined(__AVX2__)
template <class Code>
inline Words widened(const void* from) noexcept {
  if constexpr (sizeof(Code) == 1) return bits<Words>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
  return bits<Words>(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from))));
}
template <class Code>
inline void narrowed(void* to, Words from) noexcept {
  const auto all = bits<__m256i>(from);
  const __m128i pairs = _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  if constexpr (sizeof(Code) == 1) return _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packus_epi16(pairs, pairs));
  _mm_storeu_si128(static_cast<__m128i*>(to), pairs);
}
#elif defined(__SSE2__)
template <class Code>
inline Words widened(const void* from) noexcept {
  const __m128i zero = _mm_setzero_si128();
  if constexpr (sizeof(Code) == 1) {
    std::int32_t four = 0;
    __builtin_memcpy(&four, from, sizeof four);
    return bits<Words>(_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero));
  }
  return bits<Words>(_mm_unpacklo_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(from)), zero));
}
template <class Code>
inline void narrowed(void* to, Words from) noexcept {
  // There is no unsigned saturation of words: sign-extended ones are packed as they are.
  const __m128i pairs = _mm_packs_epi32(_mm_srai_epi32(_mm_slli_epi32(bits<__m128i>(from), 16), 16), _mm_setzero_si128());
  if constexpr (sizeof(Code) == 1) {
    const std::int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs));
    __builtin_memcpy(to, &four, sizeof four);
    return;
  }
  _mm_storel_epi64(static_cast<__m128i*>(to), pairs);
}
#else
template <class Code>
Words widened(const void* from) noexcept {
  Code codes[words];
  __builtin_memcpy(codes, from, sizeof codes);
  Words to;
  for (std::size_t i = 0; i < words; ++i) to[i] = codes[i];
  return to;
}
template <class Code>
void narrowed(void* to, Words from) noexcept {
  Code codes[words];
  for (std::size_t i = 0; i < words; ++i) codes[i] = static_cast<Code>(from[i]);
  __builtin_memcpy(to, codes, sizeof codes);
}
#endif

// A float of 1 + Exponent + Mantissa bits with subnormal numbers. `Last`: the code of the largest number.
template <class Code, unsigned Exponent, unsigned Mantissa, std::uint32_t Bias, std::uint32_t Last, std::uint32_t Beyond,
          std::uint32_t Nan, bool SignedZero>
struct Narrow {
  using Stored [[gnu::aligned(1), gnu::may_alias]] = Code;
  using Lane = float;
  static constexpr std::size_t step = words, registers = 1;
  struct Registers {
    Floats part[1];
  };
  static Registers load(const void* from) noexcept { return {{decode(widened<Code>(from))}}; }
  static void store(void* to, const Registers& from) noexcept { narrowed<Code>(to, encode(from.part[0])); }

 private:
  static constexpr unsigned shift = 23 - Mantissa;
  static constexpr std::uint32_t sign_bit = 1U << (Exponent + Mantissa);

  static Floats decode(Words code) noexcept {
    const Words sign = (code & sign_bit) << (31 - Exponent - Mantissa);
    const Words magnitude = code & (sign_bit - 1);
    // Subnormal numbers from their integer mantissa: as subnormal f32 numbers they would be a hundred times slower.
    const Floats small =
        __builtin_convertvector(bits<SignedWords>(magnitude), Floats) * __builtin_bit_cast(float, (128 - Bias - Mantissa) << 23);
    const Words normal = (magnitude << shift) + ((127 - Bias) << 23);
    Words all = select(magnitude < (1U << Mantissa), bits<Words>(small), normal);
    if constexpr (SignedZero) {
      if constexpr (Beyond != Nan) all = select(magnitude == Beyond, Words{} + 0x7f800000U, all);
      SignedWords is_nan = bits<SignedWords>(magnitude) > static_cast<std::int32_t>(Last);
      if constexpr (Beyond != Nan) is_nan &= magnitude != Beyond;
      all = select(is_nan, Words{} + 0x7fc00000U, all);
    } else {
      all = select(code == Nan, Words{} + 0x7fc00000U, all);
    }
    return bits<Floats>(all | sign);
  }

  static Words encode(Floats value) noexcept {
    const Words all = bits<Words>(value);
    const Words absolute = all & 0x7fffffffU;
    const Words sign = (all >> 31) << (Exponent + Mantissa);
    // Below the smallest normal number an addition rounds: the sum's last bit is worth the smallest subnormal number.
    constexpr std::uint32_t magic = (127 - Bias + 1 - Mantissa + 23) << 23;
    const Floats sum = bits<Floats>(absolute) + __builtin_bit_cast(float, magic);
    const Words small = bits<Words>(sum) - magic;
    const Words normal = (absolute - ((127 - Bias) << 23) + ((1U << (shift - 1)) - 1) + ((absolute >> shift) & 1U)) >> shift;
    // Both are below 2^31, so that signed comparisons do.
    Words code = select(bits<SignedWords>(absolute) < static_cast<std::int32_t>((128 - Bias) << 23), small, normal);
    code = select(bits<SignedWords>(code) > static_cast<std::int32_t>(Last), Words{} + Beyond, code);
    code = select(bits<SignedWords>(absolute) > 0x7f800000, Words{} + Nan, code);
    if constexpr (SignedZero) return code | sign;
    return select((code == 0U) | (code == Nan), code, code | sign);
  }
};
#if defined(__F16C__) && defined(__AVX2__)
struct Half {
  using Stored [[gnu::aligned(1), gnu::may_alias]] = std::uint16_t;
  using Lane = float;
  static constexpr std::size_t step = words, registers = 1;
  struct Registers {
    Floats part[1];
  };
  static Registers load(const void* from) noexcept {
    return {{bits<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from))))}};
  }
  static void store(void* to, const Registers& from) noexcept {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(bits<__m256>(from.part[0]), _MM_FROUND_TO_NEAREST_INT));
  }
};
#else
using Half = Narrow<std::uint16_t, 5, 10, 15, 0x7bff, 0x7c00, 0x7e00, true>;
#endif
using Float8E4m3fn = Narrow<std::uint8_t, 4, 3, 7, 0x7e, 0x7f, 0x7f, true>;
using Float8E4m3fnuz = Narrow<std::uint8_t, 4, 3, 8, 0x7f, 0x80, 0x80, false>;
using Float8E5m2 = Narrow<std::uint8_t, 5, 2, 15, 0x7b, 0x7c, 0x7e, true>;

}  // namespace
}  // namespace hmc
