// The rows of a KV cache's pages, for the kernels of pages.cu: where they lie, how threads read and write them, and the sums of their
// elements, which digests are made of. Stands behind reduce.cu.

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

}  // namespace hmc_pages_kernel
