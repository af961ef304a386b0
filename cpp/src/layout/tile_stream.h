// Copies of rows past the cache, for tile_loops.h and by its rules.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "layout/tile.h"

namespace hmc {
namespace {

// How far the reads are ahead. Rows of a few lines each are too short for the processor's own prefetcher.
constexpr std::size_t prefetched_bytes = 4096;

constexpr std::size_t rows_ahead(std::size_t row_bytes) noexcept { return (prefetched_bytes + row_bytes - 1) / row_bytes; }

#if defined(__AVX2__)

inline std::uint32_t total(__m256i sums) noexcept {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}

inline __m256i key_vector(const std::int16_t* keys) noexcept { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys)); }

// What is summed up is what is stored: the source may change at any time.
template <bool Digest, bool Narrow>
void stream_rows(std::uint32_t* sums, std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride,
                 std::size_t rows, std::size_t bytes, const std::int16_t* keys) noexcept {
  const std::size_t ahead = from_stride * rows_ahead(bytes);
  for (std::size_t row = 0; row < rows; ++row, to += to_stride, from += from_stride) {
    __m256i sum = _mm256_setzero_si256();
    const std::int16_t* key = keys;
    const auto copy_32 = [&](std::size_t at) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm256_castsi256_si128(v));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + 16), _mm256_extracti128_si256(v, 1));
      if constexpr (Digest && Narrow) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(v)), key_vector(key)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(v, 1)), key_vector(key + 16)));
        key += 32;
      } else if constexpr (Digest) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(v, key_vector(key)));
        key += 16;
      }
    };
    std::size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(from) + ahead + at, _MM_HINT_T0);  // beyond the source it does nothing
      copy_32(at);
      copy_32(at + 32);
    }
    if (at < bytes) copy_32(at);
    if constexpr (Digest) sums[row] += total(sum);
  }
}

bool stream(std::uint32_t* sums, std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride,
            std::size_t rows, std::size_t bytes, std::size_t size, const std::int16_t* keys) noexcept {
  // A line that two rows share leaves the processor whole where they follow one another: arrays of NumPy begin 16 bytes behind a
  // line.
  if (bytes == 0 || bytes % 32 != 0 || to_stride % 16 != 0 || reinterpret_cast<std::uintptr_t>(to) % 16 != 0) return false;
  if (sums == nullptr) {
    stream_rows<false, false>(sums, to, to_stride, from, from_stride, rows, bytes, keys);
  } else if (size == 1) {
    stream_rows<true, true>(sums, to, to_stride, from, from_stride, rows, bytes, keys);
  } else {
    stream_rows<true, false>(sums, to, to_stride, from, from_stride, rows, bytes, keys);
  }
  return true;
}

void end_stream() noexcept { _mm_sfence(); }

#else

bool stream(std::uint32_t*, std::byte*, std::size_t, const std::byte*, std::size_t, std::size_t, std::size_t, std::size_t,
            const std::int16_t*) noexcept {
  return false;
}
void end_stream() noexcept {}

#endif

}  // namespace
}  // namespace hmc
