// The loops of tile.h, for the instruction set that the including file is compiled for. HMC_TILE_VARIANT names the table.
//
// Included by several files with different compiler flags: everything is in an unnamed namespace, and nothing of the standard
// library is called, because a linker may keep any one file's copy of an inline function for all.
#include "device/number_formats.h"
#include "layout/tile.h"
#include "layout/tile_stream.h"

namespace hmc {
namespace {

// ---- copies ----

// An element at any address.
template <class T>
inline T load(const std::byte* at) noexcept {
  T value;
  __builtin_memcpy(&value, at, sizeof(T));
  return value;
}

// Eight elements, four of 4 bytes.
template <class T>
struct Lanes {
  static constexpr std::size_t count = sizeof(T) == 4 ? 4 : 8;
  using Vector[[gnu::vector_size(sizeof(T) * (sizeof(T) == 4 ? 4 : 8))]] = T;
  static Vector low(Vector a, Vector b) noexcept {
    if constexpr (count == 4) {
      return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    } else {
      return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    }
  }
  static Vector high(Vector a, Vector b) noexcept {
    if constexpr (count == 4) {
      return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    } else {
      return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
  }
};

// A square of elements: each round interleaves lines that are half of the square apart.
template <class T>
inline void transpose_square(std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride) noexcept {
  using L = Lanes<T>;
  constexpr std::size_t n = L::count;
  typename L::Vector a[n], b[n];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < n; ++i) __builtin_memcpy(&a[i], from + i * from_stride, sizeof(a[i]));
#pragma GCC unroll 3
  for (std::size_t round = 1; round < n; round *= 2) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < n / 2; ++i) {
      b[2 * i] = L::low(a[i], a[i + n / 2]);
      b[2 * i + 1] = L::high(a[i], a[i + n / 2]);
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < n; ++i) a[i] = b[i];
  }
#pragma GCC unroll 8
  for (std::size_t i = 0; i < n; ++i) __builtin_memcpy(to + i * to_stride, &a[i], sizeof(a[i]));
}

// Line i of `to`, element j: line j of `from`, element i.
template <class T>
void transpose(std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride, std::size_t lines,
               std::size_t elements) noexcept {
  constexpr std::size_t n = Lanes<T>::count;
  const std::size_t whole_lines = lines / n * n, whole_elements = elements / n * n;
  for (std::size_t i = 0; i < whole_lines; i += n) {
    for (std::size_t j = 0; j < whole_elements; j += n)
      transpose_square<T>(to + i * to_stride + j * sizeof(T), to_stride, from + j * from_stride + i * sizeof(T), from_stride);
  }
  for (std::size_t i = 0; i < lines; ++i) {
    std::byte* const line = to + i * to_stride;
    for (std::size_t j = i < whole_lines ? whole_elements : 0; j < elements; ++j)
      __builtin_memcpy(line + j * sizeof(T), from + j * from_stride + i * sizeof(T), sizeof(T));
  }
}

template <std::size_t Bytes>
void copy_lines(std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride, std::size_t lines) noexcept {
  for (std::size_t i = 0; i < lines; ++i) __builtin_memcpy(to + i * to_stride, from + i * from_stride, Bytes);
}

void copy_any_lines(std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride, std::size_t lines,
                    std::size_t bytes) noexcept {
  switch (bytes) {
    case 8:
      return copy_lines<8>(to, to_stride, from, from_stride, lines);
    case 16:
      return copy_lines<16>(to, to_stride, from, from_stride, lines);
    case 32:
      return copy_lines<32>(to, to_stride, from, from_stride, lines);
    case 64:
      return copy_lines<64>(to, to_stride, from, from_stride, lines);
    case 128:
      return copy_lines<128>(to, to_stride, from, from_stride, lines);
    case 256:
      return copy_lines<256>(to, to_stride, from, from_stride, lines);
    default:
      for (std::size_t i = 0; i < lines; ++i) __builtin_memcpy(to + i * to_stride, from + i * from_stride, bytes);
  }
}

template <class T>
void copy_of(std::byte* to, TileStrides ts, const std::byte* from, TileStrides fs, std::size_t rows, std::size_t columns) noexcept {
  constexpr std::size_t size = sizeof(T);
  if (ts.column == size && fs.column == size) return copy_any_lines(to, ts.row, from, fs.row, rows, columns * size);
  if (ts.row == size && fs.row == size) return copy_any_lines(to, ts.column, from, fs.column, columns, rows * size);
  if (ts.column == size && fs.row == size) return transpose<T>(to, ts.row, from, fs.column, rows, columns);
  if (ts.row == size && fs.column == size) return transpose<T>(to, ts.column, from, fs.row, columns, rows);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j)
      __builtin_memcpy(to + i * ts.row + j * ts.column, from + i * fs.row + j * fs.column, size);
  }
}

void copy(std::byte* to, TileStrides to_strides, const std::byte* from, TileStrides from_strides, std::size_t rows,
          std::size_t columns, std::size_t size) noexcept {
  if (size == 2) return copy_of<std::uint16_t>(to, to_strides, from, from_strides, rows, columns);
  if (size == 1) return copy_of<std::uint8_t>(to, to_strides, from, from_strides, rows, columns);
  copy_of<std::uint32_t>(to, to_strides, from, from_strides, rows, columns);
}

// ---- digests ----

inline std::uint32_t product(std::uint32_t bits, std::int16_t key) noexcept {
  return bits * static_cast<std::uint32_t>(static_cast<std::int32_t>(key));
}
// 16 bits count as a signed number, 8 bits as an unsigned one: what the vector instructions multiply.
inline std::uint32_t wide(std::uint16_t bits) noexcept {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<std::int16_t>(bits)));
}
inline std::uint32_t wide(std::uint8_t bits) noexcept { return bits; }

#if defined(__AVX2__)
// 16 values, each times its key.
template <class T>
inline __m256i products(const std::byte* values, const std::int16_t* keys) noexcept {
  __m256i v;
  if constexpr (sizeof(T) == 2) {
    v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
  } else {
    v = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  return _mm256_madd_epi16(v, key_vector(keys));
}
#endif

// `next`: what is read later on.
template <class T>
std::uint32_t dot(const std::byte* values, const std::int16_t* keys, std::size_t count,
                  [[maybe_unused]] const std::byte* next) noexcept {
  std::uint32_t sum = 0;
  std::size_t i = 0;
#if defined(__AVX2__)
  constexpr std::size_t line = 64 / sizeof(T);
  __m256i sums = _mm256_setzero_si256(), more = sums;
  for (; i + line <= count; i += line) {
    _mm_prefetch(reinterpret_cast<const char*>(next) + i * sizeof(T), _MM_HINT_T0);
#pragma GCC unroll 2
    for (std::size_t j = i; j < i + line; j += 32) {
      sums = _mm256_add_epi32(sums, products<T>(values + j * sizeof(T), keys + j));
      more = _mm256_add_epi32(more, products<T>(values + (j + 16) * sizeof(T), keys + j + 16));
    }
  }
  for (; i + 16 <= count; i += 16) sums = _mm256_add_epi32(sums, products<T>(values + i * sizeof(T), keys + i));
  sum = total(_mm256_add_epi32(sums, more));
#endif
  for (; i < count; ++i) sum += product(wide(load<T>(values + i * sizeof(T))), keys[i]);
  return sum;
}

// Rows are contiguous: each column adds to all of them.
template <class T>
void digest_columns(std::uint32_t* sums, const std::byte* at, std::size_t stride, std::size_t rows, std::size_t columns,
                    const std::int16_t* keys) noexcept {
  std::size_t row = 0;
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 2) {
    for (; row + 16 <= rows; row += 16) {
      __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
      for (std::size_t j = 0; j < columns; j += 2) {
        const bool pair = j + 1 < columns;
        const std::byte* const line = at + j * stride + row * 2;
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
        const __m256i b = pair ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + stride)) : _mm256_setzero_si256();
        const std::uint32_t second = pair ? static_cast<std::uint16_t>(keys[j + 1]) : 0U;
        const __m256i key = _mm256_set1_epi32(static_cast<int>(static_cast<std::uint16_t>(keys[j]) | (second << 16)));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), key));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), key));
      }
      auto* const to = reinterpret_cast<__m256i*>(sums + row);
      const __m256i first = _mm256_permute2x128_si256(low, high, 0x20), last = _mm256_permute2x128_si256(low, high, 0x31);
      _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), first));
      _mm256_storeu_si256(to + 1, _mm256_add_epi32(_mm256_loadu_si256(to + 1), last));
    }
  }
#endif
  for (std::size_t j = 0; j < columns && row < rows; ++j) {
    const std::byte* const line = at + j * stride;
    for (std::size_t i = row; i < rows; ++i) sums[i] += product(wide(load<T>(line + i * sizeof(T))), keys[j]);
  }
}

template <class T>
void digest_of(std::uint32_t* sums, const std::byte* at, TileStrides strides, std::size_t rows, std::size_t columns,
               const std::int16_t* keys) noexcept {
  if (strides.column == sizeof(T)) {
    const std::size_t ahead = rows_ahead(columns * sizeof(T)) * strides.row;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::byte* const row = at + i * strides.row;
      sums[i] += dot<T>(row, keys, columns, row + ahead);
    }
  } else if (strides.row == sizeof(T)) {
    digest_columns<T>(sums, at, strides.column, rows, columns, keys);
  } else {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j)
        sums[i] += product(wide(load<T>(at + i * strides.row + j * strides.column)), keys[j]);
    }
  }
}

void digest(std::uint32_t* sums, const std::byte* at, TileStrides strides, std::size_t rows, std::size_t columns, std::size_t size,
            const std::int16_t* keys) noexcept {
  if (size == 2) return digest_of<std::uint16_t>(sums, at, strides, rows, columns, keys);
  if (size == 1) return digest_of<std::uint8_t>(sums, at, strides, rows, columns, keys);
  if (strides.column == 4) return digest_of<std::uint16_t>(sums, at, {strides.row, 2}, rows, 2 * columns, keys);
  for (std::size_t j = 0; j < columns; ++j)  // both halves of an element have keys
    digest_of<std::uint16_t>(sums, at + j * strides.column, {strides.row, 2}, rows, 2, keys + 2 * j);
}

// ---- casts ----

constexpr std::size_t chunk = 1024;  // elements, in the first-level cache

template <class Format>
constexpr float largest() noexcept {
  if constexpr (__is_same(Format, Float8E4m3fn)) return 448;
  if constexpr (__is_same(Format, Float8E4m3fnuz)) return 240;
  if constexpr (__is_same(Format, Float8E5m2)) return 57344;
  return 0;
}

template <class To>
void scale_and_store(std::byte* to, float* values, std::size_t count, float factor) noexcept {
  if constexpr (largest<To>() != 0) {
    constexpr float most = largest<To>();
    for (std::size_t i = 0; i < count; ++i) {
      const float value = values[i] * factor;
      const float below = value > most ? most : value;
      values[i] = below < -most ? -most : below;
    }
  } else if (factor != 1) {
    for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  }
  store<To>(reinterpret_cast<typename To::Stored*>(to), values, count);
}

template <class To, class From>
void cast_of(std::byte* to, const std::byte* from, std::size_t count, float factor) noexcept {
  alignas(64) float values[chunk];
  for (std::size_t at = 0; at < count; at += chunk) {
    const std::size_t n = count - at < chunk ? count - at : chunk;
    load<From>(values, reinterpret_cast<const typename From::Stored*>(from) + at, n);
    scale_and_store<To>(to + at * sizeof(typename To::Stored), values, n, factor);
  }
}

template <class To>
void cast_to(std::byte* to, const std::byte* from, DataType type, std::size_t count, float factor) noexcept {
  if (type == DataType::bf16) return cast_of<To, Bfloat16>(to, from, count, factor);
  if (type == DataType::f16) return cast_of<To, Half>(to, from, count, factor);
  if (type == DataType::f8_e4m3fn) return cast_of<To, Float8E4m3fn>(to, from, count, factor);
  if (type == DataType::f8_e4m3fnuz) return cast_of<To, Float8E4m3fnuz>(to, from, count, factor);
  if (type == DataType::f8_e5m2) return cast_of<To, Float8E5m2>(to, from, count, factor);
  cast_of<To, Plain<float>>(to, from, count, factor);
}

void cast(std::byte* to, DataType to_type, const std::byte* from, DataType from_type, std::size_t count, float factor) noexcept {
  if (to_type == DataType::bf16) return cast_to<Bfloat16>(to, from, from_type, count, factor);
  if (to_type == DataType::f16) return cast_to<Half>(to, from, from_type, count, factor);
  if (to_type == DataType::f8_e4m3fn) return cast_to<Float8E4m3fn>(to, from, from_type, count, factor);
  if (to_type == DataType::f8_e4m3fnuz) return cast_to<Float8E4m3fnuz>(to, from, from_type, count, factor);
  if (to_type == DataType::f8_e5m2) return cast_to<Float8E5m2>(to, from, from_type, count, factor);
  cast_to<Plain<float>>(to, from, from_type, count, factor);
}

// ---- weighted sums ----

// Columns whose sums stay in registers while all rows are added: memory is read once, in as many streams as there are rows.
constexpr std::size_t sum_block = 64;

template <class Format>
void sum_whole_block(float* sums, const WeightedRow* rows, std::size_t row_count, std::size_t at) noexcept {
  using Vector [[gnu::vector_size(32)]] = float;
  constexpr std::size_t lanes = sizeof(Vector) / sizeof(float), vectors = sum_block / lanes;
  Vector total[vectors] = {};
  alignas(64) float values[sum_block];
  for (std::size_t k = 0; k < row_count; ++k) {
    load<Format>(values, reinterpret_cast<const typename Format::Stored*>(rows[k].at) + at, sum_block);
#pragma GCC unroll 8
    for (std::size_t j = 0; j < vectors; ++j) {
      Vector some;
      __builtin_memcpy(&some, values + j * lanes, sizeof(some));
      total[j] += some * rows[k].weight;
    }
  }
#pragma GCC unroll 8
  for (std::size_t j = 0; j < vectors; ++j) __builtin_memcpy(sums + j * lanes, &total[j], sizeof(Vector));
}

template <class Format>
void weighted_sum_of(std::byte* to, const WeightedRow* rows, std::size_t row_count, std::size_t columns) noexcept {
  alignas(64) float sums[sum_block], values[sum_block];
  for (std::size_t at = 0; at < columns; at += sum_block) {
    const std::size_t n = columns - at < sum_block ? columns - at : sum_block;
    if (n == sum_block) {
      sum_whole_block<Format>(sums, rows, row_count, at);
    } else {
      for (std::size_t i = 0; i < n; ++i) sums[i] = 0;
      for (std::size_t k = 0; k < row_count; ++k) {
        load<Format>(values, reinterpret_cast<const typename Format::Stored*>(rows[k].at) + at, n);
        for (std::size_t i = 0; i < n; ++i) sums[i] += values[i] * rows[k].weight;
      }
    }
    scale_and_store<Format>(to + at * sizeof(typename Format::Stored), sums, n, 1);
  }
}

void weighted_sum(std::byte* to, DataType type, const WeightedRow* rows, std::size_t row_count, std::size_t columns) noexcept {
  if (type == DataType::bf16) return weighted_sum_of<Bfloat16>(to, rows, row_count, columns);
  if (type == DataType::f16) return weighted_sum_of<Half>(to, rows, row_count, columns);
  if (type == DataType::f8_e4m3fn) return weighted_sum_of<Float8E4m3fn>(to, rows, row_count, columns);
  if (type == DataType::f8_e4m3fnuz) return weighted_sum_of<Float8E4m3fnuz>(to, rows, row_count, columns);
  if (type == DataType::f8_e5m2) return weighted_sum_of<Float8E5m2>(to, rows, row_count, columns);
  weighted_sum_of<Plain<float>>(to, rows, row_count, columns);
}

}  // namespace

constinit const TileKernels HMC_TILE_VARIANT{HMC_TILE_NAME, copy, digest, stream, end_stream, cast, weighted_sum};

}  // namespace hmc
