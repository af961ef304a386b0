// Digests and conversions of a KV cache's pages. tools/make_ptx.sh turns this into ptx/digest_<bytes>.ptx and ptx/convert_<type>.ptx,
// which the driver compiles for the device at hand. It stands behind reduce.cu, whose formats it uses, and page_rows.cu. The numbers
// are those of layout/tile_loops.h and layout/walk.cc, and so are the bits but those of a NaN's payload.
//
// A row is one head's K or V of one token. A group of threads takes some rows at a time. It finds where they begin; reads them, and
// writes them where they are converted; then weighs their sums. `lanes` threads share a row, each with an access of some elements.
// Any grid, groups of a power of two of threads. HMC_DIGEST_<bytes of an element>, HMC_CONVERT_<type of the source> and
// HMC_PAGES_ALL define kernels. Compiled without fused multiply-add.

namespace hmc_pages_kernel {

// ---- digests ----

__device__ inline unsigned rows_from(const Call& call, Size begin) {
  return call.rows - begin < call.at_once ? static_cast<unsigned>(call.rows - begin) : call.at_once;
}

template <unsigned Bytes, unsigned Count>
__device__ inline void digest_rows(const Call& call, const Share& share, const char* const* from, unsigned count, Sums& sums) {
  using Read = Access<Bytes, Count>;
  constexpr unsigned at_once = 4;  // reads under way
  for (unsigned access = share.lane; access < call.dims / Count; access += share.lanes) {
    const Size offset = offset_of(call.source.dim, access * Count);
    const bool begins = access == share.lane;
    int keys[Read::keys];
    Read::keys_at(call.keys, access * Count, keys);
    unsigned r = share.first;
    for (; r + (at_once - 1) * share.every < count; r += at_once * share.every) {
      Read read[at_once];
#pragma unroll
      for (unsigned i = 0; i < at_once; ++i) read[i].load(from[r + i * share.every] + offset);
#pragma unroll
      for (unsigned i = 0; i < at_once; ++i) sums.add(r + i * share.every, share, begins, read[i].product(keys));
    }
    for (; r < count; r += share.every) {
      Read read;
      read.load(from[r] + offset);
      sums.add(r, share, begins, read.product(keys));
    }
  }
}

template <unsigned Bytes>
__device__ inline void digest(const Call& call) {
  __shared__ Sums sums;
  __shared__ const char* from[most_rows];
  const Share share = share_of(call);
  const unsigned accesses = call.dims / call.elements;
  Size total = 0;
  for (Size begin = static_cast<Size>(blockIdx.x) * call.at_once; begin < call.rows;
       begin += static_cast<Size>(gridDim.x) * call.at_once) {
    const unsigned count = rows_from(call, begin);
    __syncthreads();
    for (unsigned r = threadIdx.x; r < count; r += blockDim.x) {
      const Row row = row_at(call.order, begin + r);
      Size entry = 0;
      from[r] = begin_of(call.source, row, entry);
      sums.take(call, r, row, entry);
    }
    __syncthreads();
    if (call.elements * Bytes == 16) {
      digest_rows<Bytes, 16 / Bytes>(call, share, from, count, sums);
    } else if (call.elements * Bytes == 8) {
      digest_rows<Bytes, 8 / Bytes>(call, share, from, count, sums);
    } else {
      digest_rows<Bytes, 1>(call, share, from, count, sums);
    }
    __syncthreads();
    sums.weigh(call, count, share.lanes < accesses ? share.lanes : accesses, total);
  }
  sums.finish(call, total);
}

// ---- conversions ----

using hmc_reduce_kernel::bits_of;
using hmc_reduce_kernel::largest;

constexpr unsigned infinity = 0x7f800000U, magnitude = 0x7fffffffU;

// Bits of the product. A NaN keeps its sign, and the product of zero and an infinity is negative, as on x86: 8-bit types store the sign.
__device__ inline unsigned scaled(float value, float factor) {
  const unsigned bits = bits_of<unsigned>(value);
  if ((bits & magnitude) > infinity) return bits | 0x400000U;
  const unsigned product = bits_of<unsigned>(value * factor);
  return (product & magnitude) > infinity ? 0xffc00000U : product;
}

// Of codes: an element as an unsigned number. Bits are compared, not numbers: where numbers are chosen between, a device may put a NaN
// of its own in place of this one, which is then positive.
template <class From, class To, class Read>
__device__ inline typename Words<sizeof(typename To::Stored)>::Type cast(Read code, float factor) {
  const float most = largest<To>();
  float value = From::decode(bits_of<typename From::Stored>(code));
  if (most != 0 || factor != 1) {
    unsigned bits = scaled(value, factor);
    const unsigned size = bits & magnitude;
    if (most != 0 && size > bits_of<unsigned>(most) && size <= infinity) bits = (bits & ~magnitude) | bits_of<unsigned>(most);
    value = bits_of<float>(bits);
  }
  return bits_of<typename Words<sizeof(typename To::Stored)>::Type>(To::encode(value));
}

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;

// The rows of a group: where they are read and written, and by how much their numbers are multiplied.
struct Moves {
  const char* from[most_rows];
  char* to[most_rows];
  float factors[most_rows];
};

template <class From, class To, unsigned Count>
__device__ inline void convert_rows(const Call& call, const Share& share, const Moves& moves, unsigned count, Sums& sums) {
  using Read = Access<sizeof(typename From::Stored), Count>;
  using Written = Access<sizeof(typename To::Stored), Count>;
  for (unsigned access = share.lane; access < call.dims / Count; access += share.lanes) {
    const Size from = offset_of(call.source.dim, access * Count), to = offset_of(call.target.dim, access * Count);
    int keys[Read::keys] = {};
    if (call.digests != 0) Read::keys_at(call.keys, access * Count, keys);
    for (unsigned r = share.first; r < count; r += share.every) {
      Read read;
      read.load(moves.from[r] + from);
      if (call.digests != 0) sums.add(r, share, access == share.lane, read.product(keys));
      const float factor = moves.factors[r];
      if constexpr (same<From, To>) {
        if (factor == 1) {
          read.store(moves.to[r] + to);
          continue;
        }
      }
      Written written;
#pragma unroll
      for (unsigned i = 0; i < Count; ++i) written.elements[i] = cast<From, To>(read.elements[i], factor);
      written.store(moves.to[r] + to);
    }
  }
}

template <class From, class To>
__device__ inline void convert_to(const Call& call, const Share& share, const Moves& moves, unsigned count, Sums& sums) {
  constexpr unsigned most = sizeof(typename From::Stored) == 4 || sizeof(typename To::Stored) == 4 ? 4 : 8;
  if (call.elements == most) {
    convert_rows<From, To, most>(call, share, moves, count, sums);
  } else {
    convert_rows<From, To, 1>(call, share, moves, count, sums);
  }
}

template <class From>
__device__ inline void convert(const Call& call) {
  using namespace hmc_reduce_kernel;
  __shared__ Sums sums;
  __shared__ Moves moves;
  const Share share = share_of(call);
  const unsigned accesses = call.dims / call.elements;
  Size total = 0;
  for (Size begin = static_cast<Size>(blockIdx.x) * call.at_once; begin < call.rows;
       begin += static_cast<Size>(gridDim.x) * call.at_once) {
    const unsigned count = rows_from(call, begin);
    __syncthreads();
    for (unsigned r = threadIdx.x; r < count; r += blockDim.x) {
      const Row row = row_at(call.order, begin + r);
      Size entry = 0;
      moves.to[r] = begin_of(call.target, row, entry);
      moves.from[r] = begin_of(call.source, row, entry);
      moves.factors[r] = call.factors[row.layer * call.kvs + row.kv];
      sums.take(call, r, row, entry);
    }
    __syncthreads();
    switch (call.type) {
      case 1:
        convert_to<From, Plain<float>>(call, share, moves, count, sums);
        break;
      case 2:
        convert_to<From, Half>(call, share, moves, count, sums);
        break;
      case 3:
        convert_to<From, Bfloat16>(call, share, moves, count, sums);
        break;
      case 4:
        convert_to<From, Float8E4m3fn>(call, share, moves, count, sums);
        break;
      case 5:
        convert_to<From, Float8E4m3fnuz>(call, share, moves, count, sums);
        break;
      default:
        convert_to<From, Float8E5m2>(call, share, moves, count, sums);
    }
    __syncthreads();
    if (call.digests != 0) sums.weigh(call, count, share.lanes < accesses ? share.lanes : accesses, total);
  }
  if (call.digests != 0) sums.finish(call, total);
}

}  // namespace hmc_pages_kernel

#define HMC_PAGES_KERNEL(name, ...)                                                     \
  extern "C" __global__ void __launch_bounds__(256) name(hmc_pages_kernel::Call call) { \
    hmc_pages_kernel::__VA_ARGS__(call);                                                \
  }

#if defined(HMC_DIGEST_1) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_digest_1, digest<1>)
#endif
#if defined(HMC_DIGEST_2) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_digest_2, digest<2>)
#endif
#if defined(HMC_DIGEST_4) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_digest_4, digest<4>)
#endif
#if defined(HMC_CONVERT_f32) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_convert_f32, convert<hmc_reduce_kernel::Plain<float>>)
#endif
#if defined(HMC_CONVERT_f16) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_convert_f16, convert<hmc_reduce_kernel::Half>)
#endif
#if defined(HMC_CONVERT_bf16) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_convert_bf16, convert<hmc_reduce_kernel::Bfloat16>)
#endif
#if defined(HMC_CONVERT_f8_e4m3fn) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_convert_f8_e4m3fn, convert<hmc_reduce_kernel::Float8E4m3fn>)
#endif
#if defined(HMC_CONVERT_f8_e4m3fnuz) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_convert_f8_e4m3fnuz, convert<hmc_reduce_kernel::Float8E4m3fnuz>)
#endif
#if defined(HMC_CONVERT_f8_e5m2) || defined(HMC_PAGES_ALL)
HMC_PAGES_KERNEL(hmc_convert_f8_e5m2, convert<hmc_reduce_kernel::Float8E5m2>)
#endif
