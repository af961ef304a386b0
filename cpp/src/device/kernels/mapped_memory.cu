// What a rank tells the others of a collective of device memory (mapped.cu), in memory that the devices of all ranks map: its Call,
// flags, cells and slots. Stands behind reduce.cu.
//
// A call goes in rounds, which are numbered from the group's first one on and never go back, so nothing is reset between calls. In
// round n a block pushes chunk n of what its rank gives into slots of the ranks that take or reduce it; reduces chunk n - lag into
// slots of the ranks that collect it; and takes chunk n - 2 lag out of its own slots (n - lag, where nothing is reduced). It begins
// round n when the same block of every other rank has ended round n - lag, and needs no other block of its own grid to run at the
// same time.
//
// Hence slots are reused without a question: what was in a slot of round n - slots_of_block was read in round n - slots_of_block +
// lag, and a lag is at most half of slots_of_block.

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
constexpr unsigned most_blocks = 132;
constexpr unsigned slots_of_block = 4;
constexpr unsigned flag_bytes = 64;
constexpr unsigned most_ahead = 4;  // packs that a thread loads before it uses the first
constexpr unsigned warp = 32;

struct Part {
  Number offset, bytes;
};

struct Call {
  const char* input;
  char* output;
  char* segments[most_ranks];
  const unsigned* ended;      // not 0: the host has ended the call
  Part gives[most_ranks];     // of the input: what rank r gets of it
  Part takes[most_ranks];     // of the output: what comes of rank r
  Part own;                   // of the input: what this rank reduces
  Number kept_at;             // where in the output its result goes
  Number keeps;               // not 0: it goes there
  Number first;               // the number of the call's first round
  Number steps;               // chunks of each block; 0: the call passes through cells
  Number chunk;               // bytes, of each step of a block
  Number lag;                 // rounds between what is done with a chunk
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
  unsigned sources;     // inputs that are reduced, from rank `source` on; 0: what is given is taken as it is
  unsigned source;
};

// ---- memory that other devices write ----

// What this thread knows to be written comes before what it publishes from here on.
__device__ inline void fence() {
#if defined(HMC_MAPPED_CUDA)
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(HMC_MAPPED_HIP)
  __threadfence_system();
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

__device__ inline void publish(Number* flag, Number value) {
#if defined(HMC_MAPPED_CUDA)
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
#elif defined(HMC_MAPPED_HIP)
  __hip_atomic_store(flag, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  __atomic_store_n(flag, value, __ATOMIC_RELAXED);
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

// A cell carries a pack: its words and the call's number in turns, 32 bytes. The first halves of 32 cells lie side by side, before
// their second halves, so that the threads of a warp write whole lines at a time: with cells in one piece a link has half the speed.
__device__ inline char* half_cell(char* cells, Number at, unsigned half) {
  return cells + ((at / warp * 2 + half) * warp + at % warp) * pack_bytes;
}

// Each half of 16 bytes, a word and a number, is written and read at once.
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

// ---- rounds and slots ----

// What `from` says on a segment: how many rounds this block of it has ended.
__device__ inline Number* flag_of(char* segment, unsigned from) {
  return reinterpret_cast<Number*>(segment + (blockIdx.x * most_ranks + from) * flag_bytes);
}

enum Kind : unsigned { pushed, reduced };

// In the segment of rank `in`: where `from` puts what it pushes, or has reduced, in that round.
__device__ inline char* slot_of(const Call& call, unsigned in, Kind kind, unsigned from, Number round) {
  const unsigned other = from < in ? from : from - 1;
  const Number at = ((static_cast<Number>(kind) * (call.ranks - 1) + other) * most_blocks + blockIdx.x) * slots_of_block +
                    round % slots_of_block;
  return call.segments[in] + call.slots_at + at * call.slot;
}

// Threads of a block that do the same, side by side.
struct Threads {
  unsigned first, count;
  __device__ bool contain() const { return threadIdx.x - first < count; }
  __device__ unsigned index() const { return threadIdx.x - first; }
};

// What the threads of a block do. The links must not wait while one thread waits for its writes to arrive, or for another rank. In a
// block of few threads all do everything.
struct Roles {
  Threads beginning, telling, working;
  bool together;
  __device__ Roles() {
    together = blockDim.x < 8 * warp;
    beginning = together ? Threads{0, blockDim.x} : Threads{0, warp};
    telling = together ? beginning : Threads{warp, warp};
    working = together ? beginning : Threads{2 * warp, blockDim.x - 2 * warp};
  }
};

enum Barrier : unsigned { round_begins = 1, round_ends = 2 };  // 0 is __syncthreads()'s

// Those that take part wait for each other; where the language has no such barrier, all do.
#if defined(HMC_MAPPED_CUDA)
__device__ inline void meet(const Roles& roles, Barrier barrier, bool takes_part) {
  const unsigned threads = roles.together ? blockDim.x : blockDim.x - warp;
  if (takes_part) asm volatile("bar.sync %0, %1;" ::"r"(static_cast<unsigned>(barrier)), "r"(threads) : "memory");
}
#else
__device__ inline void meet(const Roles&, Barrier, bool) { __syncthreads(); }
#endif

// By one thread: the block has ended that round.
__device__ inline void tell(const Call& call, Number round) {
  fence();
  for (unsigned i = 1; i < call.ranks; ++i) publish(flag_of(call.segments[(call.rank + i) % call.ranks], call.rank), round + 1);
}

// Some threads, which wait until the other ranks have ended enough to begin that round. Sets `ended` if the call was ended.
__device__ inline void await(const Call& call, Number round, Threads threads, unsigned& ended) {
  unsigned looks = 0;
  for (unsigned from = threads.index(); from < call.ranks; from += threads.count) {
    if (from == call.rank) continue;
    const Number* const flag = flag_of(call.segments[call.rank], from);
    while (observe(flag) + call.lag < round + 1) {
      if (!ended_after(call, looks)) continue;
      ended = 1;
      break;
    }
  }
}

}  // namespace hmc_mapped_kernel
