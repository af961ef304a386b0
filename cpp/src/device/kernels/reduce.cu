// Elementwise reduction of several arrays into one. tools/make_ptx.sh turns this into ptx/reduce_<type>.ptx, which the driver
// compiles for the device at hand.
//
// target[i] = sources[0][i] op sources[1][i] op ..., left to right, with the arithmetic and the bits (but those of a NaN) of device/reduce_loops.h. Each
// thread reduces packs of 16 bytes. Any grid. HMC_REDUCE_<type> defines the kernel of that type, HMC_REDUCE_ALL those of all.
// Compiled without fused multiply-add.

#if defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace hmc_reduce_kernel {

constexpr unsigned most_sources = 64;
constexpr unsigned pack_bytes = 16;

struct Call {
  char* target;
  const char* sources[most_sources];
  unsigned long long count;  // elements
  double scale;              // of every source's elements, floating types only
  unsigned sources_count;
  unsigned divisor;  // of the result
  unsigned op;       // number of hmc::ReduceOp
  unsigned width;    // divides every address: 16, the size of an element, or 1
};

template <class To, class From>
__device__ inline To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "two views of the same bits");
  union {
    From from;
    To to;
  } both;
  both.from = from;
  return both.to;
}

// ---- formats: how an element is stored, and the type that it is computed in ----

template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static constexpr bool floating = static_cast<T>(0.5) != static_cast<T>(0);
  __device__ static Wide decode(T value) { return value; }
  __device__ static T encode(Wide value) { return value; }
};

struct Bfloat16 {
  using Stored = unsigned short;
  using Wide = float;
  static constexpr bool floating = true;
  __device__ static float decode(Stored value) { return bits_of<float>(static_cast<unsigned>(value) << 16); }
  __device__ static Stored encode(float value) {
    const unsigned bits = bits_of<unsigned>(value);
    const unsigned rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const unsigned nan = (bits >> 16) | 0x40U;
    return static_cast<Stored>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
};

// A float of 1 + Exponent + Mantissa bits with subnormal numbers. `Last`: the code of the largest number.
template <class Code, unsigned Exponent, unsigned Mantissa, unsigned Bias, unsigned Last, unsigned Beyond, unsigned Nan,
          bool SignedZero>
struct Narrow {
  using Stored = Code;
  using Wide = float;
  static constexpr bool floating = true;
  static constexpr unsigned shift = 23 - Mantissa;
  static constexpr unsigned sign_bit = 1U << (Exponent + Mantissa);

  __device__ static float decode(Code code) {
    const unsigned sign = (code & sign_bit) << (31 - Exponent - Mantissa);
    const unsigned magnitude = code & (sign_bit - 1);
    const float small = static_cast<float>(static_cast<int>(magnitude)) * bits_of<float>((128 - Bias - Mantissa) << 23);
    const unsigned normal = (magnitude << shift) + ((127 - Bias) << 23);
    unsigned bits = magnitude >> Mantissa == 0 ? bits_of<unsigned>(small) : normal;
    if (SignedZero) {
      if (Beyond != Nan && magnitude == Beyond) bits = 0x7f800000U;
      if (magnitude > Last && (Beyond == Nan || magnitude != Beyond)) bits = 0x7fc00000U;
    } else if (code == Nan) {
      bits = 0x7fc00000U;
    }
    return bits_of<float>(bits | sign);
  }

  __device__ static Code encode(float value) {
    const unsigned all = bits_of<unsigned>(value);
    const unsigned bits = all & 0x7fffffffU;
    const unsigned sign = (all >> 31) << (Exponent + Mantissa);
    // Below the smallest normal number an addition rounds: the sum's last bit is worth the smallest subnormal number.
    constexpr unsigned magic = (127 - Bias + 1 - Mantissa + 23) << 23;
    const float sum = bits_of<float>(bits) + bits_of<float>(magic);
    const unsigned small = bits_of<unsigned>(sum) - magic;
    const unsigned normal = (bits - ((127 - Bias) << 23) + ((1U << (shift - 1)) - 1) + ((bits >> shift) & 1U)) >> shift;
    unsigned code = bits < ((128 - Bias) << 23) ? small : normal;
    code = code > Last ? Beyond : code;
    code = bits > 0x7f800000U ? Nan : code;
    if (SignedZero) return static_cast<Code>(code | sign);
    return static_cast<Code>(code == 0 || code == Nan ? code : code | sign);
  }
};
using Half = Narrow<unsigned short, 5, 10, 15, 0x7bff, 0x7c00, 0x7e00, true>;
using Float8E4m3fn = Narrow<unsigned char, 4, 3, 7, 0x7e, 0x7f, 0x7f, true>;
using Float8E4m3fnuz = Narrow<unsigned char, 4, 3, 8, 0x7f, 0x80, 0x80, false>;
using Float8E5m2 = Narrow<unsigned char, 5, 2, 15, 0x7b, 0x7c, 0x7e, true>;

// The largest number of a type whose conversions saturate; 0: they do not.
template <class Format>
__device__ inline float largest() {
  return 0;
}
template <>
__device__ inline float largest<Float8E4m3fn>() {
  return 448;
}
template <>
__device__ inline float largest<Float8E4m3fnuz>() {
  return 240;
}
template <>
__device__ inline float largest<Float8E5m2>() {
  return 57344;
}

// ---- operations ----

template <class T>
struct Arithmetic {
  // Integers are added and multiplied as unsigned ones of at least 32 bits, which wrap around.
  __device__ static T sum(T a, T b) {
    return static_cast<T>(static_cast<unsigned long long>(a) + static_cast<unsigned long long>(b));
  }
  __device__ static T product(T a, T b) {
    return static_cast<T>(static_cast<unsigned long long>(a) * static_cast<unsigned long long>(b));
  }
  __device__ static T least(T a, T b) { return a < b ? a : b; }
  __device__ static T most(T a, T b) { return a > b ? a : b; }
  __device__ static T both(T a, T b) { return static_cast<T>(a & b); }
  __device__ static T either(T a, T b) { return static_cast<T>(a | b); }
  __device__ static T one(T a, T b) { return static_cast<T>(a ^ b); }
  __device__ static T divided(T a, unsigned divisor) {
    if (static_cast<T>(-1) < static_cast<T>(0)) return static_cast<T>(static_cast<long long>(a) / static_cast<long long>(divisor));
    return static_cast<T>(static_cast<unsigned long long>(a) / static_cast<unsigned long long>(divisor));
  }
};

template <class T>
struct FloatArithmetic {
  __device__ static T sum(T a, T b) { return a + b; }
  __device__ static T product(T a, T b) { return a * b; }
  __device__ static T least(T a, T b) { return a < b || a != a ? a : b; }
  __device__ static T most(T a, T b) { return a > b || a != a ? a : b; }
  __device__ static T both(T a, T) { return a; }
  __device__ static T either(T a, T) { return a; }
  __device__ static T one(T a, T) { return a; }
  __device__ static T divided(T a, unsigned divisor) { return a / static_cast<T>(divisor); }
  __device__ static T scaled(T a, double scale) { return a * static_cast<T>(scale); }
};
template <>
struct Arithmetic<float> : FloatArithmetic<float> {};
template <>
struct Arithmetic<double> : FloatArithmetic<double> {};

// ---- packs ----

struct alignas(pack_bytes) Words {
  unsigned word[4];
};

template <class Format>
struct Pack {
  using Stored = typename Format::Stored;
  static constexpr unsigned elements = pack_bytes / sizeof(Stored);
  union {
    Words words;
    Stored element[elements];
    unsigned char byte[pack_bytes];
  };
  // `valid`: elements.
  __device__ void load(const char* from, unsigned valid, unsigned width) {
    if (width == pack_bytes && valid == elements) {
      words = *reinterpret_cast<const Words*>(from);
      return;
    }
    words = Words{};
    if (width >= sizeof(Stored)) {
#pragma unroll
      for (unsigned i = 0; i < elements; ++i) {
        if (i < valid) element[i] = reinterpret_cast<const Stored*>(from)[i];
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < pack_bytes; ++i) {
        if (i < valid * sizeof(Stored)) byte[i] = reinterpret_cast<const unsigned char*>(from)[i];
      }
    }
  }
  __device__ void store(char* to, unsigned valid, unsigned width) const {
    if (width == pack_bytes && valid == elements) {
      *reinterpret_cast<Words*>(to) = words;
    } else if (width >= sizeof(Stored)) {
#pragma unroll
      for (unsigned i = 0; i < elements; ++i) {
        if (i < valid) reinterpret_cast<Stored*>(to)[i] = element[i];
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < pack_bytes; ++i) {
        if (i < valid * sizeof(Stored)) reinterpret_cast<unsigned char*>(to)[i] = byte[i];
      }
    }
  }
};

// What is reduced so far of the elements of one pack.
template <class Format>
struct Sum {
  using Wide = typename Format::Wide;
  using Does = Arithmetic<Wide>;
  static constexpr unsigned elements = Pack<Format>::elements;
  Wide value[elements];

  __device__ void decode(const Pack<Format>& pack, double scale) {
#pragma unroll
    for (unsigned i = 0; i < elements; ++i) value[i] = Format::decode(pack.element[i]);
    if constexpr (Format::floating) {
      if (scale == 1) return;
#pragma unroll
      for (unsigned i = 0; i < elements; ++i) value[i] = Does::scaled(value[i], scale);
    }
  }
  template <class Operation>
  __device__ void each(const Sum& next, Operation operation) {
#pragma unroll
    for (unsigned i = 0; i < elements; ++i) value[i] = operation(value[i], next.value[i]);
  }
  __device__ void add(const Sum& next, unsigned op) {
    switch (op) {
      case 1:
        return each(next, [](Wide a, Wide b) { return Does::product(a, b); });
      case 2:
        return each(next, [](Wide a, Wide b) { return Does::least(a, b); });
      case 3:
        return each(next, [](Wide a, Wide b) { return Does::most(a, b); });
      case 5:
        return each(next, [](Wide a, Wide b) { return Does::both(a, b); });
      case 6:
        return each(next, [](Wide a, Wide b) { return Does::either(a, b); });
      case 7:
        return each(next, [](Wide a, Wide b) { return Does::one(a, b); });
      default:
        return each(next, [](Wide a, Wide b) { return Does::sum(a, b); });
    }
  }
  __device__ void encode(Pack<Format>& pack, unsigned divisor) {
    if (divisor != 1) {
#pragma unroll
      for (unsigned i = 0; i < elements; ++i) value[i] = Does::divided(value[i], divisor);
    }
#pragma unroll
    for (unsigned i = 0; i < elements; ++i) pack.element[i] = Format::encode(value[i]);
  }
};

template <class Format>
__device__ inline void reduce(const Call& call) {
  constexpr unsigned elements = Pack<Format>::elements;
  const unsigned long long packs = (call.count + elements - 1) / elements;
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; at < packs; at += step) {
    const unsigned long long left = call.count - at * elements;
    const unsigned valid = left < elements ? static_cast<unsigned>(left) : elements;
    const unsigned long long offset = at * pack_bytes;
    Pack<Format> pack;
    pack.load(call.sources[0] + offset, valid, call.width);
    Sum<Format> result;
    result.decode(pack, call.scale);
    for (unsigned s = 1; s < call.sources_count; ++s) {
      pack.load(call.sources[s] + offset, valid, call.width);
      Sum<Format> next;
      next.decode(pack, call.scale);
      result.add(next, call.op);
    }
    result.encode(pack, call.divisor);
    pack.store(call.target + offset, valid, call.width);
  }
}

}  // namespace hmc_reduce_kernel

#define HMC_REDUCE_KERNEL(name, ...)                                                      \
  extern "C" __global__ void __launch_bounds__(256) name(hmc_reduce_kernel::Call call) { \
    hmc_reduce_kernel::reduce<hmc_reduce_kernel::__VA_ARGS__>(call);                      \
  }

#if defined(HMC_REDUCE_f64) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_f64, Plain<double>)
#endif
#if defined(HMC_REDUCE_f32) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_f32, Plain<float>)
#endif
#if defined(HMC_REDUCE_f16) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_f16, Half)
#endif
#if defined(HMC_REDUCE_bf16) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_bf16, Bfloat16)
#endif
#if defined(HMC_REDUCE_f8_e4m3fn) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_f8_e4m3fn, Float8E4m3fn)
#endif
#if defined(HMC_REDUCE_f8_e4m3fnuz) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_f8_e4m3fnuz, Float8E4m3fnuz)
#endif
#if defined(HMC_REDUCE_f8_e5m2) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_f8_e5m2, Float8E5m2)
#endif
#if defined(HMC_REDUCE_i64) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_i64, Plain<long long>)
#endif
#if defined(HMC_REDUCE_i32) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_i32, Plain<int>)
#endif
#if defined(HMC_REDUCE_i16) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_i16, Plain<short>)
#endif
#if defined(HMC_REDUCE_i8) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_i8, Plain<signed char>)
#endif
#if defined(HMC_REDUCE_u64) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_u64, Plain<unsigned long long>)
#endif
#if defined(HMC_REDUCE_u32) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_u32, Plain<unsigned>)
#endif
#if defined(HMC_REDUCE_u16) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_u16, Plain<unsigned short>)
#endif
#if defined(HMC_REDUCE_u8) || defined(HMC_REDUCE_ALL)
HMC_REDUCE_KERNEL(hmc_reduce_u8, Plain<unsigned char>)
#endif
