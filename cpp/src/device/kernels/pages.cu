// Digests and conversions of a KV cache's pages. tools/make_ptx.sh turns this into pages_ptx.h, which the driver compiles for the
// device at hand. It stands behind reduce.cu, whose formats it uses. The numbers are those of layout/tile_loops.h and
// layout/walk.cc, and so are the bits but those of a NaN's payload.
//
// A row is one head's K or V of one token. A group of threads takes some rows at a time. It finds where they begin; reads them, and
// writes them where they are converted; then weighs their sums. `lanes` threads share a row, each with an access of some elements.
// Any grid, groups of a power of two of threads. HMC_DIGEST_<bytes of an element>, HMC_CONVERT_<type of the source> and
// HMC_PAGES_ALL define kernels. Compiled without fused multiply-add.

namespace hmc_pages_kernel {

using Size = unsigned long long;

constexpr unsigned most_rows = 256;  // of a group at a time
constexpr unsigned most_lanes = 16;
constexpr unsigned most_neighbours = 16;
constexpr unsigned pitch = most_lanes + 1;

// Index x of an axis lies at byte x / part * outer + x % part * inner of buffer x * buffer.
struct Map {
  Size part, outer, inner, buffer;
};

// One cache. `first`: the indices at which the call's layers, heads and tokens begin.
struct Cache {
  const Size* buffers;  // addresses
  const Size* blocks;   // offsets of the listed blocks
  Map layer, kv, head, token, dim;
  Size first_layer, first_head, first_token;
  Size block_tokens;
  Size buffers_count, buffer_bytes, blocks_count;  // what the tables hold, for a simulated device
};

// The order of the rows: `counts` of their axes, fastest first, and which of them each axis is.
struct Order {
  Size counts[4];
  unsigned layer, kv, head, token;
};

struct Call {
  Cache source, target;
  Order order;
  const short* keys;     // of dimensions: one for each 16 bits of a row, of 8-bit elements one for each
  const float* factors;  // by layer and kv
  Size* sums;            // by layer, head and listed block; or one
  Size rows, kvs, heads;
  Size model_layer, model_head, position;  // of the first row, for its key
  Size entries;                            // listed blocks; 0: one sum
  unsigned dims;
  unsigned elements;  // of an access
  unsigned lanes;     // a power of two
  unsigned at_once;   // rows of a group
  unsigned by_rows;   // 1: neighbouring threads take neighbouring rows, not neighbouring parts of a row
  unsigned digests;   // 0: no sums
  unsigned type;      // number of the target's hmc::DataType
};

// Most quotients are of 32 bits, which take a fraction of the time.
__device__ inline Size quotient(Size a, Size b) {
  if (((a | b) >> 32) == 0) return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  return a / b;
}

__device__ inline Size offset_of(const Map& map, Size x) {
  if (map.part == 1) return x * map.outer;
  const Size whole = quotient(x, map.part);
  return whole * map.outer + (x - whole * map.part) * map.inner;
}

struct Row {
  Size layer, kv, head, token;
};
__device__ inline Row row_at(const Order& order, Size row) {
  Size index[4];
#pragma unroll
  for (unsigned i = 0; i < 3; ++i) {
    const Size rest = quotient(row, order.counts[i]);
    index[i] = row - rest * order.counts[i];
    row = rest;
  }
  index[3] = row;
  const auto of = [&](unsigned at) { return at == 0 ? index[0] : at == 1 ? index[1] : at == 2 ? index[2] : index[3]; };
  return {of(order.layer), of(order.kv), of(order.head), of(order.token)};
}

// Where a row begins; `entry`: in the list of blocks.
__device__ inline char* begin_of(const Cache& cache, const Row& row, Size& entry) {
  const Size layer = cache.first_layer + row.layer, token = cache.first_token + row.token;
  entry = quotient(token, cache.block_tokens);
  const Size offset = offset_of(cache.layer, layer) + offset_of(cache.kv, row.kv) +
                      offset_of(cache.head, cache.first_head + row.head) + cache.blocks[entry] +
                      offset_of(cache.token, token - entry * cache.block_tokens);
  return reinterpret_cast<char*>(cache.buffers[layer * cache.layer.buffer + row.kv * cache.kv.buffer] + offset);
}

__device__ inline Size mix(Size x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The key of a row.
__device__ inline Size weight_of(const Call& call, const Row& row) {
  constexpr Size golden = 0x9e3779b97f4a7c15ULL;
  const Size base = mix(((call.model_layer + row.layer) << 33) + (row.kv << 32) + call.model_head + row.head + golden);
  return mix(base + (call.position + row.token) * golden) | 1;
}

// ---- accesses ----

template <unsigned Bytes>
struct Words;
template <>
struct Words<16> {
  using Type = hmc_reduce_kernel::Words;
};
template <>
struct Words<8> {
  using Type = unsigned long long;
};
template <>
struct Words<4> {
  using Type = unsigned;
};
template <>
struct Words<2> {
  using Type = unsigned short;
};
template <>
struct Words<1> {
  using Type = unsigned char;
};

// `Count` elements of `Bytes` bytes.
template <unsigned Bytes, unsigned Count>
struct Access {
  static constexpr unsigned keys = Bytes == 1 ? Count : Bytes * Count / 2;
  using Word = typename Words<Bytes * Count>::Type;
  union {
    Word word;
    typename Words<Bytes>::Type elements[Count];
    unsigned char bytes[Bytes * Count];
    unsigned short halves[(Bytes * Count + 1) / 2];
  };
  __device__ void load(const char* from) { word = *reinterpret_cast<const Word*>(from); }
  __device__ void store(char* to) const { *reinterpret_cast<Word*>(to) = word; }

  // 16 bits count as a signed number, 8 bits as an unsigned one.
  __device__ unsigned product(const int (&by)[keys]) const {
    unsigned sum = 0;
#pragma unroll
    for (unsigned i = 0; i < keys; ++i) {
      const int value = Bytes == 1 ? static_cast<int>(bytes[i]) : static_cast<int>(static_cast<short>(halves[i]));
      sum += static_cast<unsigned>(value) * static_cast<unsigned>(by[i]);
    }
    return sum;
  }
  __device__ static void keys_at(const short* from, unsigned dim, int (&into)[keys]) {
    const unsigned first = Bytes == 4 ? 2 * dim : dim;
#pragma unroll
    for (unsigned i = 0; i < keys; ++i) into[i] = from[first + i];
  }
};

// What a thread of a group does.
struct Share {
  unsigned lanes, lane;   // its accesses of a row: lane, lane + lanes, ...
  unsigned first, every;  // its rows: first, first + every, ...
};
__device__ inline Share share_of(const Call& call) {
  const unsigned threads = blockDim.x, lanes = call.lanes < threads ? call.lanes : threads, every = threads / lanes;
  if (call.by_rows != 0) return {lanes, threadIdx.x / every, threadIdx.x % every, every};
  return {lanes, threadIdx.x % lanes, threadIdx.x / lanes, every};
}

// ---- sums ----

// Of the rows of a group. sums[row * pitch + lane]: each thread adds to its own.
struct Sums {
  Size weights[most_rows], places[most_rows];
  unsigned parts[most_rows * pitch];

  __device__ void add(unsigned row, const Share& share, bool begins, unsigned value) {
    unsigned& sum = parts[row * pitch + share.lane];
    sum = begins ? value : sum + value;
  }
  __device__ void take(const Call& call, unsigned at, const Row& row, Size entry) {
    weights[at] = weight_of(call, row);
    places[at] = (row.layer * call.heads + row.head) * call.entries + entry;
  }
  // Adds the digests of the rows up, to those of their places or to the thread's total.
  __device__ void weigh(const Call& call, unsigned count, unsigned lanes, Size& total) {
    for (unsigned r = threadIdx.x; r < count; r += blockDim.x) {
      unsigned sum = 0;
      for (unsigned lane = 0; lane < lanes; ++lane) sum += parts[r * pitch + lane];
      const Size value = (static_cast<Size>(sum) + 1) * weights[r];
      total += value;
      weights[r] = value;
    }
    if (call.entries == 0) return;
    __syncthreads();
    for (unsigned r = threadIdx.x; r < count; r += blockDim.x) {
      if (!begins(r)) continue;
      Size value = weights[r];
      for (unsigned next = r + 1; next < count && !begins(next); ++next) value += weights[next];
      atomicAdd(call.sums + places[r], value);
    }
  }
  // Whether a row has another place than the one before. Neighbours are added up before they go to memory, some at a time.
  __device__ bool begins(unsigned row) const { return row % most_neighbours == 0 || places[row] != places[row - 1]; }
  // The totals of a group's threads into the one sum.
  __device__ void finish(const Call& call, Size total) {
    if (call.entries != 0) return;
    __syncthreads();
    weights[threadIdx.x] = total;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) weights[threadIdx.x] += weights[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(call.sums, weights[0]);
  }
};

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

template <class Format>
__device__ inline float largest() {
  return 0;
}
template <>
__device__ inline float largest<hmc_reduce_kernel::Float8E4m3fn>() {
  return 448;
}
template <>
__device__ inline float largest<hmc_reduce_kernel::Float8E4m3fnuz>() {
  return 240;
}
template <>
__device__ inline float largest<hmc_reduce_kernel::Float8E5m2>() {
  return 57344;
}

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
