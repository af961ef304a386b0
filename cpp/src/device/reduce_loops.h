// The loops of a reduction, for the instruction set that the including file is compiled for. HMC_REDUCE_VARIANT names the function.
//
// Included by several files with different compiler flags: everything is in an unnamed namespace, and nothing of the standard
// library is called, because a linker may keep any one file's copy of an inline function for all.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/number_formats.h"
#include "device/reduce_variants.h"

namespace hmc {
namespace {

// Elements that are added up in the first-level cache before they are stored.
constexpr std::size_t block = 1024;

// ---- operations ----

// Integers are added and multiplied as unsigned ones of at least 32 bits, which wrap around.
template <class T, class F>
T arithmetic(T a, T b, F&& f) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    return f(a, b);
  } else if constexpr (sizeof(T) < 4) {
    return static_cast<T>(f(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)));
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  }
}

struct Sum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return arithmetic(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) noexcept {
    return arithmetic(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      return a < b || a != a ? a : b;
    } else {
      return a < b ? a : b;
    }
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      return a > b || a != a ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};
struct And {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a ^ b);
  }
};

// ---- loops ----

template <class Format, class Op>
void run(void* target, const void* const* sources, std::size_t sources_count, std::size_t count, const ReduceStep& step) noexcept {
  using Wide = typename Format::Wide;
  using Stored = typename Format::Stored;
  alignas(64) Wide result[block];
  alignas(64) Wide next[block];
  const auto fetch = [&](Wide* to, std::size_t source, std::size_t at, std::size_t n) {
    load<Format>(to, static_cast<const Stored*>(sources[source]) + at, n);
    if constexpr (std::is_floating_point_v<Wide>) {
      if (step.scale == 1) return;
      const Wide scale = static_cast<Wide>(step.scale);
      for (std::size_t i = 0; i < n; ++i) to[i] *= scale;
    }
  };
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t n = count - at < block ? count - at : block;
    fetch(result, 0, at, n);
    for (std::size_t source = 1; source < sources_count; ++source) {
      fetch(next, source, at, n);
      for (std::size_t i = 0; i < n; ++i) result[i] = Op::apply(result[i], next[i]);
    }
    if (step.divisor != 1) {
      // A divisor that an 8-bit or 16-bit type cannot hold is larger than any sum.
      for (std::size_t i = 0; i < n; ++i) {
        if constexpr (std::is_floating_point_v<Wide>) {
          result[i] /= static_cast<Wide>(step.divisor);
        } else if constexpr (std::is_signed_v<Wide>) {
          result[i] = static_cast<Wide>(static_cast<std::int64_t>(result[i]) / static_cast<std::int64_t>(step.divisor));
        } else {
          result[i] = static_cast<Wide>(result[i] / std::uint64_t{step.divisor});
        }
      }
    }
    store<Format>(static_cast<Stored*>(target) + at, result, n);
  }
}

template <class Format>
ReduceFunction of_format(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::product:
      return run<Format, Product>;
    case ReduceOp::min:
      return run<Format, Min>;
    case ReduceOp::max:
      return run<Format, Max>;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      if constexpr (std::is_integral_v<typename Format::Wide>) {
        return op == ReduceOp::band ? run<Format, And> : op == ReduceOp::bor ? run<Format, Or> : run<Format, Xor>;
      }
      break;
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum:
      break;
  }
  return run<Format, Sum>;
}

ReduceFunction chosen(DataType type, ReduceOp op) noexcept {
  switch (type) {
    case DataType::f64:
      return of_format<Plain<double>>(op);
    case DataType::f32:
      return of_format<Plain<float>>(op);
    case DataType::f16:
      return of_format<Half>(op);
    case DataType::bf16:
      return of_format<Bfloat16>(op);
    case DataType::f8_e4m3fn:
      return of_format<Float8E4m3fn>(op);
    case DataType::f8_e4m3fnuz:
      return of_format<Float8E4m3fnuz>(op);
    case DataType::f8_e5m2:
      return of_format<Float8E5m2>(op);
    case DataType::i64:
      return of_format<Plain<std::int64_t>>(op);
    case DataType::i32:
      return of_format<Plain<std::int32_t>>(op);
    case DataType::i16:
      return of_format<Plain<std::int16_t>>(op);
    case DataType::i8:
      return of_format<Plain<std::int8_t>>(op);
    case DataType::u64:
      return of_format<Plain<std::uint64_t>>(op);
    case DataType::u32:
      return of_format<Plain<std::uint32_t>>(op);
    case DataType::u16:
      return of_format<Plain<std::uint16_t>>(op);
    case DataType::u8:
      break;
  }
  return of_format<Plain<std::uint8_t>>(op);
}

}  // namespace

void HMC_REDUCE_VARIANT(void* target, const void* const* sources, std::size_t sources_count, std::size_t count,
                        const ReduceStep& step) noexcept {
  chosen(step.type, step.op)(target, sources, sources_count, count, step);
}

}  // namespace hmc
