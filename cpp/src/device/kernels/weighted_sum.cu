// Weighted sums of rows. tools/make_ptx.sh turns this into ptx/weighted_sum_<type>.ptx, which the driver compiles for the device at
// hand. It stands behind reduce.cu, whose formats and packs it uses.
//
// Row t of the target = sum over k of weight (t, k) * row (t, k), wherever the device reaches it, with the order, the roundings and the bits (but those of a NaN) of
// hmc/weighted_sum.h. Each thread sums packs of 16 bytes. Any grid. HMC_WEIGHTED_SUM_<type> defines the kernel of that type,
// HMC_WEIGHTED_SUM_ALL those of all. Compiled without fused multiply-add.

namespace hmc_weighted_sum_kernel {

using hmc_reduce_kernel::bits_of;
using hmc_reduce_kernel::largest;
using hmc_reduce_kernel::Pack;
using hmc_reduce_kernel::pack_bytes;
using Size = unsigned long long;

constexpr unsigned reads_in_flight = 4;  // of a thread

struct Term {
  const char* row;  // null: it is left out
  float weight;
  unsigned unused;
};

struct Call {
  char* target;
  const Term* terms;  // term (t, k) is number t * terms_count + k
  Size results;
  Size row_bytes;
  unsigned terms_count;
  unsigned width;  // divides all addresses and row_bytes: 16, the size of an element, or 1
};

// Most quotients are of 32 bits, which take a fraction of the time.
__device__ inline Size quotient(Size a, Size b) {
  if (((a | b) >> 32) == 0) return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  return a / b;
}

template <class Format>
__device__ inline typename Format::Stored rounded(float value) {
  const float most = largest<Format>();
  if (most != 0) {
    value = value > most ? most : value;
    value = value < -most ? -most : value;
  }
  return Format::encode(value);
}

template <class Format>
struct Sums {
  static constexpr unsigned elements = Pack<Format>::elements;
  float value[elements];

  __device__ void add(const Pack<Format>& pack, float weight) {
#pragma unroll
    for (unsigned i = 0; i < elements; ++i) value[i] += Format::decode(pack.element[i]) * weight;
  }
};

// Wide: all packs are whole and aligned.
template <class Format, bool Wide>
__device__ inline void sum_packs(const Call& call) {
  constexpr unsigned elements = Pack<Format>::elements, in_flight = Wide ? reads_in_flight : 1;
  const unsigned width = Wide ? pack_bytes : call.width;
  const Size columns = quotient(call.row_bytes, sizeof(typename Format::Stored));
  const Size packs = quotient(columns + elements - 1, elements);
  const Size step = static_cast<Size>(gridDim.x) * blockDim.x;
  for (Size at = static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x; at < call.results * packs; at += step) {
    const Size result = quotient(at, packs), pack = at - result * packs, left = columns - pack * elements;
    const unsigned valid = Wide || left >= elements ? elements : static_cast<unsigned>(left);
    const Term* const terms = call.terms + result * call.terms_count;
    Sums<Format> sums = {};
    for (unsigned first = 0; first < call.terms_count; first += in_flight) {
      Pack<Format> read[in_flight];
      Term term[in_flight];
#pragma unroll
      for (unsigned i = 0; i < in_flight; ++i) term[i] = first + i < call.terms_count ? terms[first + i] : Term{nullptr, 0, 0};
#pragma unroll
      for (unsigned i = 0; i < in_flight; ++i) {
        if (term[i].row != nullptr) read[i].load(term[i].row + pack * pack_bytes, valid, width);
      }
#pragma unroll
      for (unsigned i = 0; i < in_flight; ++i) {
        if (term[i].row != nullptr) sums.add(read[i], term[i].weight);
      }
    }
    Pack<Format> made;
#pragma unroll
    for (unsigned i = 0; i < elements; ++i) made.element[i] = rounded<Format>(sums.value[i]);
    made.store(call.target + result * call.row_bytes + pack * pack_bytes, valid, width);
  }
}

template <class Format>
__device__ inline void weighted_sum(const Call& call) {
  if (call.width == pack_bytes) {
    sum_packs<Format, true>(call);
  } else {
    sum_packs<Format, false>(call);
  }
}

}  // namespace hmc_weighted_sum_kernel

#define HMC_WEIGHTED_SUM_KERNEL(name, ...)                                                     \
  extern "C" __global__ void __launch_bounds__(256) name(hmc_weighted_sum_kernel::Call call) { \
    hmc_weighted_sum_kernel::weighted_sum<hmc_reduce_kernel::__VA_ARGS__>(call);               \
  }

#if defined(HMC_WEIGHTED_SUM_f32) || defined(HMC_WEIGHTED_SUM_ALL)
HMC_WEIGHTED_SUM_KERNEL(hmc_weighted_sum_f32, Plain<float>)
#endif
#if defined(HMC_WEIGHTED_SUM_f16) || defined(HMC_WEIGHTED_SUM_ALL)
HMC_WEIGHTED_SUM_KERNEL(hmc_weighted_sum_f16, Half)
#endif
#if defined(HMC_WEIGHTED_SUM_bf16) || defined(HMC_WEIGHTED_SUM_ALL)
HMC_WEIGHTED_SUM_KERNEL(hmc_weighted_sum_bf16, Bfloat16)
#endif
#if defined(HMC_WEIGHTED_SUM_f8_e4m3fn) || defined(HMC_WEIGHTED_SUM_ALL)
HMC_WEIGHTED_SUM_KERNEL(hmc_weighted_sum_f8_e4m3fn, Float8E4m3fn)
#endif
#if defined(HMC_WEIGHTED_SUM_f8_e4m3fnuz) || defined(HMC_WEIGHTED_SUM_ALL)
HMC_WEIGHTED_SUM_KERNEL(hmc_weighted_sum_f8_e4m3fnuz, Float8E4m3fnuz)
#endif
#if defined(HMC_WEIGHTED_SUM_f8_e5m2) || defined(HMC_WEIGHTED_SUM_ALL)
HMC_WEIGHTED_SUM_KERNEL(hmc_weighted_sum_f8_e5m2, Float8E5m2)
#endif
