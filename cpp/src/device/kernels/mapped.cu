// A rank's share of an all_reduce, reduce_scatter or reduce of device memory, as one kernel over memory that the devices of all ranks
// map. Stands behind reduce.cu, whose formats and arithmetic it uses. tools/make_ptx.sh turns both into mapped_ptx.h, one text for each
// type. HMC_MAPPED_<type> defines the kernel of that type, HMC_MAPPED_ALL those of all.
//
// Each rank has a segment of device memory that the others write. What it says there of a chunk: `pushed`, a rank's input of the chunk
// is in the slot of the rank that reduces it; `reduced`, the result is in the slot of a rank that collects it. Numbers of chunks never
// go back, so nothing is reset between calls. Block b of a kernel waits for block b of the other ranks' kernels only: it needs no other
// block of its own grid to run at the same time.
//
// Slots are reused without a question. A rank that has been told of chunk n - 2 by another one knows that this one has reduced chunk
// n - 4; a rank that has been told of chunk n knows that the other one has collected chunk n - 3. With slots_of_block = 4, both are free.

#if defined(__HIP__) || defined(__HIPCC_RTC__)
#define HMC_MAPPED_HIP
#elif defined(__CUDACC__)
#define HMC_MAPPED_CUDA
#endif

namespace hmc_mapped_kernel {

using hmc_reduce_kernel::Pack;
using hmc_reduce_kernel::pack_bytes;
using hmc_reduce_kernel::Sum;
using hmc_reduce_kernel::Words;
using Number = unsigned long long;

constexpr unsigned most_ranks = 8;
constexpr unsigned most_blocks = 36;
constexpr unsigned slots_of_block = 4;
constexpr unsigned flag_bytes = 64;
constexpr unsigned cell_bytes = 32;  // carries a pack: words and the call's number in turns

struct Part {
  Number offset, bytes;
};

struct Call {
  const char* input;
  char* output;
  char* segments[most_ranks];
  const unsigned* ended;      // not 0: the host has ended the call
  Part parts[most_ranks];     // of the input: what rank r gets of it
  Part own;                   // of the input: what this rank reduces
  Number kept_at;             // where in the output its result goes
  Number keeps;               // not 0: it goes there
  Number first;               // the number of the call's first chunk
  Number steps;               // chunks of each block; 0: the call passes through cells
  Number chunk;               // bytes, of each step of a block
  Number slot;                // bytes of a slot
  Number cells_at, slots_at;  // in the segments
  Number cells;               // bytes of the cells of one rank
  double scale;
  unsigned divisor;
  unsigned op;
  unsigned width;       // divides the addresses of the input and the output, and all offsets
  unsigned rank, ranks;
  unsigned collectors;  // bit r: rank r collects all results
  unsigned shot;        // number of a call that passes through cells; not 0
};

// ---- memory that other devices write ----

__device__ inline void publish(Number* flag, Number value) {
#if defined(HMC_MAPPED_CUDA)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
#elif defined(HMC_MAPPED_HIP)
  __hip_atomic_store(flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
#endif
}

__device__ inline Number observe(const Number* flag) {
#if defined(HMC_MAPPED_CUDA)
  Number value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
#elif defined(HMC_MAPPED_HIP)
  return __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
#endif
}

// Each half of a cell's 16 bytes, a word and a number, is written and read at once.
__device__ inline void write_half_cell(char* to, unsigned first, unsigned second, unsigned number) {
#if defined(HMC_MAPPED_CUDA)
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(first), "r"(number), "r"(second), "r"(number)
               : "memory");
#else
  const Number high = static_cast<Number>(number) << 32;
  Number* const words = reinterpret_cast<Number*>(to);
#if defined(HMC_MAPPED_HIP)
  __hip_atomic_store(words, high | first, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(words + 1, high | second, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  __atomic_store_n(words, high | first, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, high | second, __ATOMIC_RELAXED);
#endif
#endif
}

// False: it is not there yet.
__device__ inline bool read_half_cell(const char* from, unsigned& first, unsigned& second, unsigned number) {
#if defined(HMC_MAPPED_CUDA)
  unsigned one, other;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(first), "=r"(one), "=r"(second), "=r"(other)
               : "l"(from)
               : "memory");
  return one == number && other == number;
#else
  const Number* const words = reinterpret_cast<const Number*>(from);
#if defined(HMC_MAPPED_HIP)
  const Number low = __hip_atomic_load(words, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  const Number high = __hip_atomic_load(words + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  const Number low = __atomic_load_n(words, __ATOMIC_RELAXED);
  const Number high = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
#endif
  first = static_cast<unsigned>(low);
  second = static_cast<unsigned>(high);
  return low >> 32 == number && high >> 32 == number;
#endif
}

// One look more. True: the host has ended the call. The word is in host memory, so few looks of a device read it.
__device__ inline bool ended_after(const Call& call, unsigned& looks) {
#if defined(HMC_MAPPED_CUDA) || defined(HMC_MAPPED_HIP)
  constexpr unsigned looks_per_word = 256;
  return ++looks % looks_per_word == 0 && *reinterpret_cast<const volatile unsigned*>(call.ended) != 0;
#else
  HMC_MAPPED_RELAX();  // each look gives the core away
  ++looks;
  return __atomic_load_n(call.ended, __ATOMIC_ACQUIRE) != 0;
#endif
}

// ---- flags and slots ----

enum Kind : unsigned { pushed, reduced };

__device__ inline Number* flag_of(char* segment, Kind kind, unsigned from) {
  return reinterpret_cast<Number*>(segment + ((kind * most_blocks + blockIdx.x) * most_ranks + from) * flag_bytes);
}
__device__ inline char* slot_of(const Call& call, unsigned in, Kind kind, unsigned from, Number step) {
  const unsigned other = from < in ? from : from - 1;
  const Number at = ((static_cast<Number>(kind) * (call.ranks - 1) + other) * most_blocks + blockIdx.x) * slots_of_block +
                    (call.first + step) % slots_of_block;
  return call.segments[in] + call.slots_at + at * call.slot;
}
__device__ inline void tell(const Call& call, Kind kind, unsigned to, Number step) {
  publish(flag_of(call.segments[to], kind, call.rank), call.first + step + 1);
}
// False: the call was ended.
__device__ inline bool await(const Call& call, Kind kind, Number step) {
  unsigned looks = 0;
  for (unsigned from = 0; from < call.ranks; ++from) {
    if (from == call.rank) continue;
    const Number* const flag = flag_of(call.segments[call.rank], kind, from);
    while (observe(flag) < call.first + step + 1) {
      if (ended_after(call, looks)) return false;
    }
  }
  return true;
}

// This block's piece of a part in one step. Pieces begin at whole packs of their part.
__device__ inline Part piece(const Call& call, const Part& part, Number step) {
  const Number at = (step * gridDim.x + blockIdx.x) * call.chunk;
  if (at >= part.bytes) return {part.offset, 0};
  const Number left = part.bytes - at;
  return {part.offset + at, left < call.chunk ? left : call.chunk};
}

template <class Format>
__device__ inline unsigned valid_of(Number bytes, Number pack) {
  const Number left = bytes - pack * pack_bytes;
  return left < pack_bytes ? static_cast<unsigned>(left / sizeof(typename Format::Stored)) : Pack<Format>::elements;
}
__device__ inline Number packs_of(Number bytes) { return (bytes + pack_bytes - 1) / pack_bytes; }

// By all threads of a block. One of the two sides is a slot, which is aligned.
template <class Format>
__device__ __noinline__ void copy(char* to, unsigned to_width, const char* from, unsigned from_width, Number bytes) {
  constexpr unsigned unroll = 4;
  const Number step = blockDim.x;
  Number at = threadIdx.x;
  if (to_width == pack_bytes && from_width == pack_bytes) {
    const Number whole = bytes / pack_bytes;
    Words* const target = reinterpret_cast<Words*>(to);
    const Words* const source = reinterpret_cast<const Words*>(from);
    for (; at + (unroll - 1) * step < whole; at += unroll * step) {
      Words words[unroll];
#pragma unroll
      for (unsigned i = 0; i < unroll; ++i) words[i] = source[at + i * step];
#pragma unroll
      for (unsigned i = 0; i < unroll; ++i) target[at + i * step] = words[i];
    }
  }
  for (; at < packs_of(bytes); at += step) {
    const unsigned valid = valid_of<Format>(bytes, at);
    Pack<Format> pack;
    pack.load(from + at * pack_bytes, valid, from_width);
    pack.store(to + at * pack_bytes, valid, to_width);
  }
}

template <class Format>
__device__ inline void push(const Call& call, Number step) {
  for (unsigned i = 1; i < call.ranks; ++i) {
    const unsigned to = (call.rank + i) % call.ranks;
    const Part what = piece(call, call.parts[to], step);
    copy<Format>(slot_of(call, to, pushed, call.rank, step), pack_bytes, call.input + what.offset, call.width, what.bytes);
  }
}

template <class Format>
__device__ inline void collect(const Call& call, Number step) {
  for (unsigned i = 1; i < call.ranks; ++i) {
    const unsigned from = (call.rank + i) % call.ranks;
    const Part what = piece(call, call.parts[from], step);
    copy<Format>(call.output + what.offset, call.width, slot_of(call, call.rank, reduced, from, step), pack_bytes, what.bytes);
  }
}

// In rank order, each element once. What most packs need is loaded two packs ahead; everything else has one place in the code, which
// is compiled for every operation.
template <class Format>
__device__ inline void reduce(const Call& call, Number step) {
  const Part what = piece(call, call.own, step);
  const Number packs = packs_of(what.bytes), stride = blockDim.x;
  const char* const input = call.input + what.offset;
  char* const output = call.keeps == 0 ? nullptr : call.output + call.kept_at + (what.offset - call.own.offset);
  const char* const first = call.rank == 0 ? input : slot_of(call, call.rank, pushed, 0, step);
  const char* const second = call.rank == 1 ? input : slot_of(call, call.rank, pushed, 1, step);
  for (Number at = threadIdx.x; at < packs; at += 2 * stride) {
    const bool two = at + stride < packs;
    const bool ahead = call.width == pack_bytes && (at + (two ? stride : 0) + 1) * pack_bytes <= what.bytes;
    Words words[4] = {};
    if (ahead) {
      words[0] = reinterpret_cast<const Words*>(first)[at];
      words[1] = reinterpret_cast<const Words*>(second)[at];
      if (two) words[2] = reinterpret_cast<const Words*>(first)[at + stride];
      if (two) words[3] = reinterpret_cast<const Words*>(second)[at + stride];
    }
#pragma unroll 1
    for (unsigned i = 0; i < (two ? 2U : 1U); ++i) {
      const Number pack = at + i * stride;
      const unsigned valid = valid_of<Format>(what.bytes, pack);
      Sum<Format> result;
      Pack<Format> next;
#pragma unroll 1
      for (unsigned from = 0; from < call.ranks; ++from) {
        if (ahead && from < 2) {
          next.words = from == 0 ? (i == 0 ? words[0] : words[2]) : (i == 0 ? words[1] : words[3]);
        } else {
          const bool mine = from == call.rank;
          next.load((mine ? input : slot_of(call, call.rank, pushed, from, step)) + pack * pack_bytes, valid,
                    mine ? call.width : pack_bytes);
        }
        Sum<Format> more;
        more.decode(next, call.scale);
        if (from == 0) {
          result = more;
        } else {
          result.add(more, call.op);
        }
      }
      result.encode(next, call.divisor);
#pragma unroll 1
      for (unsigned to = 0; to < call.ranks; ++to) {
        const bool mine = to == call.rank;
        if (mine ? call.keeps == 0 : (call.collectors >> to & 1U) == 0) continue;
        next.store((mine ? output : slot_of(call, to, reduced, call.rank, step)) + pack * pack_bytes, valid,
                   mine ? call.width : pack_bytes);
      }
    }
  }
}

// Chunk by chunk: every block pushes one, reduces the one before and collects the one before that.
template <class Format>
__device__ inline void pass(const Call& call) {
  __shared__ unsigned ended;
  const bool leads = threadIdx.x == 0;
  const bool collects = call.collectors >> call.rank & 1U;
  if (leads) ended = 0;
  for (Number step = 0; step < call.steps + 2; ++step) {
    if (step < call.steps) {
      push<Format>(call, step);
      __syncthreads();
      for (unsigned to = 0; leads && to < call.ranks; ++to) {
        if (to != call.rank) tell(call, pushed, to, step);
      }
    }
    if (step >= 1 && step <= call.steps) {
      if (leads && !await(call, pushed, step - 1)) ended = 1;
      __syncthreads();
      if (ended) return;
      reduce<Format>(call, step - 1);
      __syncthreads();
      for (unsigned to = 0; leads && to < call.ranks; ++to) {
        if (to != call.rank && (call.collectors >> to & 1U)) tell(call, reduced, to, step - 1);
      }
    }
    if (step >= 2 && collects) {
      if (leads && !await(call, reduced, step - 2)) ended = 1;
      __syncthreads();
      if (ended) return;
      collect<Format>(call, step - 2);
    }
  }
}

// Small inputs, each word beside the call's number: one trip, no flag behind the bytes. Cells alternate between two places. A rank that
// has a call's first cell of another one knows that this one has ended the call before, so each sends each at least one.
template <class Format>
__device__ inline void exchange(const Call& call) {
  const Number stride = static_cast<Number>(gridDim.x) * blockDim.x;
  const Number begin = static_cast<Number>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Number half = call.cells_at + (call.shot % 2) * call.ranks * call.cells;
  for (unsigned i = 1; i < call.ranks; ++i) {
    const unsigned to = (call.rank + i) % call.ranks;
    const Part& part = call.parts[to];
    char* const cells = call.segments[to] + half + call.rank * call.cells;
    for (Number at = begin; at == 0 || at < packs_of(part.bytes); at += stride) {
      Pack<Format> pack;
      pack.load(call.input + part.offset + at * pack_bytes, part.bytes == 0 ? 0 : valid_of<Format>(part.bytes, at), call.width);
      write_half_cell(cells + at * cell_bytes, pack.words.word[0], pack.words.word[1], call.shot);
      write_half_cell(cells + at * cell_bytes + pack_bytes, pack.words.word[2], pack.words.word[3], call.shot);
    }
  }
  unsigned looks = 0;
  for (Number at = begin; at == 0 || at < packs_of(call.own.bytes); at += stride) {
    const unsigned valid = call.own.bytes == 0 ? 0 : valid_of<Format>(call.own.bytes, at);
    Sum<Format> result;
#pragma unroll 1
    for (unsigned from = 0; from < call.ranks; ++from) {
      Pack<Format> pack;
      if (from == call.rank) {
        pack.load(call.input + call.own.offset + at * pack_bytes, valid, call.width);
      } else {
        const char* const cell = call.segments[call.rank] + half + from * call.cells + at * cell_bytes;
        while (!read_half_cell(cell, pack.words.word[0], pack.words.word[1], call.shot) ||
               !read_half_cell(cell + pack_bytes, pack.words.word[2], pack.words.word[3], call.shot)) {
          if (ended_after(call, looks)) return;
        }
      }
      Sum<Format> next;
      next.decode(pack, call.scale);
      if (from == 0) {
        result = next;
      } else {
        result.add(next, call.op);
      }
    }
    Pack<Format> pack;
    result.encode(pack, call.divisor);
    if (call.keeps) pack.store(call.output + call.kept_at + at * pack_bytes, valid, call.width);
  }
}

template <class Format>
__device__ inline void run(const Call& call) {
  if (call.steps == 0) {
    exchange<Format>(call);
  } else {
    pass<Format>(call);
  }
}

}  // namespace hmc_mapped_kernel

#define HMC_MAPPED_KERNEL(name, ...)                                                       \
  extern "C" __global__ void __launch_bounds__(1024) name(hmc_mapped_kernel::Call call) { \
    hmc_mapped_kernel::run<hmc_reduce_kernel::__VA_ARGS__>(call);                          \
  }

#if defined(HMC_MAPPED_f64) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_f64, Plain<double>)
#endif
#if defined(HMC_MAPPED_f32) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_f32, Plain<float>)
#endif
#if defined(HMC_MAPPED_f16) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_f16, Half)
#endif
#if defined(HMC_MAPPED_bf16) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_bf16, Bfloat16)
#endif
#if defined(HMC_MAPPED_f8_e4m3fn) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_f8_e4m3fn, Float8E4m3fn)
#endif
#if defined(HMC_MAPPED_f8_e4m3fnuz) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_f8_e4m3fnuz, Float8E4m3fnuz)
#endif
#if defined(HMC_MAPPED_f8_e5m2) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_f8_e5m2, Float8E5m2)
#endif
#if defined(HMC_MAPPED_i64) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_i64, Plain<long long>)
#endif
#if defined(HMC_MAPPED_i32) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_i32, Plain<int>)
#endif
#if defined(HMC_MAPPED_i16) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_i16, Plain<short>)
#endif
#if defined(HMC_MAPPED_i8) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_i8, Plain<signed char>)
#endif
#if defined(HMC_MAPPED_u64) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_u64, Plain<unsigned long long>)
#endif
#if defined(HMC_MAPPED_u32) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_u32, Plain<unsigned>)
#endif
#if defined(HMC_MAPPED_u16) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_u16, Plain<unsigned short>)
#endif
#if defined(HMC_MAPPED_u8) || defined(HMC_MAPPED_ALL)
HMC_MAPPED_KERNEL(hmc_mapped_u8, Plain<unsigned char>)
#endif
