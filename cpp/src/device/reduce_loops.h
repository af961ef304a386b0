// The loops of a reduction, for the instruction set that the including file is compiled for. HMC_REDUCE_VARIANT names the function.
//
// Included by several files with different compiler flags: everything is in an unnamed namespace, and nothing of the standard
// library is called, because a linker may keep any one file's copy of an inline function for all.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/reduce_exact_loops.h"
#include "device/reduce_formats.h"
#include "device/reduce_variants.h"

namespace hmc {
namespace {

// ---- operations, of registers whose lanes are T ----

// Integers are added and multiplied as unsigned ones, which wrap around.
template <class T>
struct WrappingOf {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct WrappingOf<float> {
  using Type = float;
};
template <>
struct WrappingOf<double> {
  using Type = double;
};
template <class T>
using Wrapping = Vector<typename WrappingOf<T>::Type>;

struct Sum {
  template <class T>
  static Vector<T> apply(Vector<T> a, Vector<T> b) noexcept {
    return bits<Vector<T>>(bits<Wrapping<T>>(a) + bits<Wrapping<T>>(b));
  }
};
struct Product {
  template <class T>
  static Vector<T> apply(Vector<T> a, Vector<T> b) noexcept {
    return bits<Vector<T>>(bits<Wrapping<T>>(a) * bits<Wrapping<T>>(b));
  }
};
// NaN if either is.
struct Min {
  template <class T>
  static Vector<T> apply(Vector<T> a, Vector<T> b) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      return ((a < b) | (a != a)) ? a : b;
    } else {
      return a < b ? a : b;
    }
  }
};
struct Max {
  template <class T>
  static Vector<T> apply(Vector<T> a, Vector<T> b) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      return ((a > b) | (a != a)) ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};
struct And {
  template <class T>
  static Vector<T> apply(Vector<T> a, Vector<T> b) noexcept {
    return a & b;
  }
};
struct Or {
  template <class T>
  static Vector<T> apply(Vector<T> a, Vector<T> b) noexcept {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static Vector<T> apply(Vector<T> a, Vector<T> b) noexcept {
    return a ^ b;
  }
};

// ---- loops ----

template <class Format>
using Registers = typename Format::Registers;

template <class Format, class Op>
void combine(Registers<Format>& a, const Registers<Format>& b) noexcept {
  for (std::size_t i = 0; i < Format::registers; ++i) a.part[i] = Op::template apply<typename Format::Lane>(a.part[i], b.part[i]);
}

template <class T>
void divide(Vector<T>& values, std::uint32_t divisor) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    values /= static_cast<T>(divisor);
  } else {
    // A divisor that an 8-bit or 16-bit type cannot hold is larger than any sum.
    using Widest = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    for (std::size_t i = 0; i < register_bytes / sizeof(T); ++i)
      values[i] = static_cast<T>(static_cast<Widest>(values[i]) / static_cast<Widest>(divisor));
  }
}

// One step of the result. `at(source)`: where its elements are.
template <class Format, class Op, class At>
Registers<Format> reduced(std::size_t sources, const ReduceStep& step, const At& at) noexcept {
  using Lane = typename Format::Lane;
  const auto fetch = [&](std::size_t source) {
    Registers<Format> values = Format::load(at(source));
    if constexpr (std::is_floating_point_v<Lane>) {
      if (step.scale != 1) {
        for (auto& part : values.part) part *= static_cast<Lane>(step.scale);
      }
    }
    return values;
  };
  Registers<Format> result = fetch(0);
  for (std::size_t source = 1; source < sources; ++source) combine<Format, Op>(result, fetch(source));
  if (step.divisor != 1) {
    for (auto& part : result.part) divide<Lane>(part, step.divisor);
  }
  return result;
}

template <class Format, class Op>
void run(void* target, const void* const* sources, std::size_t sources_count, std::size_t count, const ReduceStep& step) noexcept {
  constexpr std::size_t element = sizeof(typename Format::Stored), bytes = Format::step * element;
  auto* const to = static_cast<unsigned char*>(target);
  const auto from = [&](std::size_t source, std::size_t offset) {
    return static_cast<const unsigned char*>(sources[source]) + offset;
  };
  const std::size_t whole = count / Format::step * bytes;
  if (sources_count == 2 && step.scale == 1 && step.divisor == 1) {
    const unsigned char *const first = from(0, 0), *const second = from(1, 0);
    for (std::size_t offset = 0; offset < whole; offset += bytes) {
      Registers<Format> values = Format::load(first + offset);
      combine<Format, Op>(values, Format::load(second + offset));
      Format::store(to + offset, values);
    }
  } else {
    for (std::size_t offset = 0; offset < whole; offset += bytes)
      Format::store(to + offset,
                    reduced<Format, Op>(sources_count, step, [&](std::size_t source) { return from(source, offset); }));
  }
  const std::size_t rest = count * element - whole;
  if (rest == 0) return;
  unsigned char padded[bytes] = {};
  const auto result = reduced<Format, Op>(sources_count, step, [&](std::size_t source) {
    __builtin_memcpy(padded, from(source, whole), rest);
    return padded;
  });
  Format::store(padded, result);
  __builtin_memcpy(to + whole, padded, rest);
}

template <class Format>
ReduceFunction of_format(ReduceOp op, bool exact) noexcept {
  if constexpr (std::is_floating_point_v<typename Format::Lane>) {
    if (exact) return reduce_exactly<Format>;
  }
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
      if constexpr (std::is_integral_v<typename Format::Lane>) {
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

ReduceFunction chosen(DataType type, ReduceOp op, bool exact) noexcept {
  switch (type) {
    case DataType::f64:
      return of_format<Plain<double>>(op, exact);
    case DataType::f32:
      return of_format<Plain<float>>(op, exact);
    case DataType::f16:
      return of_format<Half>(op, exact);
    case DataType::bf16:
      return of_format<Bfloat16>(op, exact);
    case DataType::f8_e4m3fn:
      return of_format<Float8E4m3fn>(op, exact);
    case DataType::f8_e4m3fnuz:
      return of_format<Float8E4m3fnuz>(op, exact);
    case DataType::f8_e5m2:
      return of_format<Float8E5m2>(op, exact);
    case DataType::i64:
      return of_format<Plain<std::int64_t>>(op, exact);
    case DataType::i32:
      return of_format<Plain<std::int32_t>>(op, exact);
    case DataType::i16:
      return of_format<Plain<std::int16_t>>(op, exact);
    case DataType::i8:
      return of_format<Plain<std::int8_t>>(op, exact);
    case DataType::u64:
      return of_format<Plain<std::uint64_t>>(op, exact);
    case DataType::u32:
      return of_format<Plain<std::uint32_t>>(op, exact);
    case DataType::u16:
      return of_format<Plain<std::uint16_t>>(op, exact);
    case DataType::u8:
      break;
  }
  return of_format<Plain<std::uint8_t>>(op, exact);
}

}  // namespace

void HMC_REDUCE_VARIANT(void* target, const void* const* sources, std::size_t sources_count, std::size_t count,
                        const ReduceStep& step) noexcept {
  chosen(step.type, step.op, step.exact)(target, sources, sources_count, count, step);
}

}  // namespace hmc
