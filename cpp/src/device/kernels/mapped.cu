// A rank's share of a collective of device memory, as one kernel over memory that the devices of all ranks map: of one that
// reduces, and of one that hands bytes on as they are. Stands behind reduce.cu, whose formats and arithmetic it uses, and
// mapped_memory.cu. tools/make_ptx.sh turns all into mapped_ptx.h, one text for each type. HMC_MAPPED_<type> defines the kernel of
// that type, HMC_MAPPED_ALL those of all.

namespace hmc_mapped_kernel {

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
    const Part what = piece(call, call.gives[to], step);
    copy<Format>(slot_of(call, to, pushed, call.rank, step), pack_bytes, call.input + what.offset, call.width, what.bytes);
  }
}

// What the others have given, out of their slots of that kind.
template <class Format>
__device__ inline void take(const Call& call, Kind kind, Number step) {
  for (unsigned i = 1; i < call.ranks; ++i) {
    const unsigned from = (call.rank + i) % call.ranks;
    const Part what = piece(call, call.takes[from], step);
    copy<Format>(call.output + what.offset, call.width, slot_of(call, call.rank, kind, from, step), pack_bytes, what.bytes);
  }
}

// What this rank gives itself, unless it is there.
template <class Format>
__device__ inline void keep(const Call& call, Number step) {
  const Part from = piece(call, call.gives[call.rank], step), to = piece(call, call.takes[call.rank], step);
  if (call.input + from.offset != call.output + to.offset)
    copy<Format>(call.output + to.offset, call.width, call.input + from.offset, call.width, to.bytes);
}

__device__ inline Words picked(const Words (&words)[most_ahead], unsigned at) {
  return at < 2 ? (at == 0 ? words[0] : words[1]) : (at == 2 ? words[2] : words[3]);
}

// In rank order, each element once. A thread loads some packs before it uses the first: what takes long is not their bytes but their
// way. Everything else has one place in the code, which is compiled for every operation.
template <class Format>
__device__ inline void reduce(const Call& call, Number step) {
  const Part what = piece(call, call.own, step);
  const Number packs = packs_of(what.bytes), stride = blockDim.x;
  const Number whole = call.width == pack_bytes ? what.bytes / pack_bytes : 0;
  const char* const input = call.input + what.offset;
  char* const output = call.keeps == 0 ? nullptr : call.output + call.kept_at + (what.offset - call.own.offset);
  const auto source = [&](unsigned i) {
    const unsigned from = call.source + i;
    return from == call.rank ? input : slot_of(call, call.rank, pushed, from, step);
  };
  // Of several packs all sources, or of one pack some.
  const unsigned at_once = call.sources == 1 ? most_ahead : call.sources == 2 ? 2 : 1;
  Words words[most_ahead];
  const auto load_ahead = [&](Number at, unsigned first) {
#pragma unroll
    for (unsigned i = 0; i < most_ahead; ++i) {
      const unsigned from = at_once == 1 ? first + i : call.sources == 1 ? 0 : i % 2;
      const Number pack = at + (at_once == 1 ? 0 : call.sources == 1 ? i : i / 2) * stride;
      if (from < call.sources && pack < whole) words[i] = reinterpret_cast<const Words*>(source(from))[pack];
    }
  };
  for (Number at = threadIdx.x; at < packs; at += at_once * stride) {
    load_ahead(at, 0);
#pragma unroll 1
    for (unsigned i = 0; i < at_once; ++i) {
      const Number pack = at + i * stride;
      if (pack >= packs) break;
      const unsigned valid = valid_of<Format>(what.bytes, pack);
      Sum<Format> result;
      Pack<Format> next;
#pragma unroll 1
      for (unsigned from = 0; from < call.sources; ++from) {
        if (from == most_ahead) load_ahead(at, from);
        if (pack < whole) {
          next.words = picked(words, (i * call.sources + from) % most_ahead);
        } else {
          next.load(source(from) + pack * pack_bytes, valid, call.source + from == call.rank ? call.width : pack_bytes);
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

constexpr unsigned everybody = ~0U;

// Chunk by chunk: every block pushes one, reduces the one before and collects the one before that.
template <class Format>
__device__ inline void pass(const Call& call) {
  __shared__ unsigned ended;
  const bool collects = call.collectors >> call.rank & 1U;
  if (threadIdx.x == 0) ended = 0;
  for (Number step = 0; step < call.steps + 2; ++step) {
    if (step < call.steps) {
      push<Format>(call, step);
      tell(call, pushed, everybody, step);
    }
    if (step >= 1 && step <= call.steps) {
      if (!await(call, pushed, step - 1, ended)) return;
      reduce<Format>(call, step - 1);
      tell(call, reduced, call.collectors, step - 1);
    }
    if (step >= 2 && collects) {
      if (!await(call, reduced, step - 2, ended)) return;
      take<Format>(call, reduced, step - 2);
    }
  }
}

// The same where nothing is reduced: every block pushes a chunk and takes the one before.
template <class Format>
__device__ inline void hand_on(const Call& call) {
  __shared__ unsigned ended;
  if (threadIdx.x == 0) ended = 0;
  for (Number step = 0; step <= call.steps; ++step) {
    if (step < call.steps) {
      push<Format>(call, step);
      tell(call, pushed, everybody, step);
      keep<Format>(call, step);
    }
    if (step >= 1) {
      if (!await(call, pushed, step - 1, ended)) return;
      take<Format>(call, pushed, step - 1);
    }
  }
}

// Small inputs, each word beside the call's number: one trip, no flag behind the bytes. Cells alternate between two places. A rank that
// has a call's first cell of another one knows that this one has ended the call before, so each sends each at least one.
template <class Format>
__device__ inline void give_in_cells(const Call& call, Number half, Number begin, Number stride) {
  for (unsigned i = 1; i < call.ranks; ++i) {
    const unsigned to = (call.rank + i) % call.ranks;
    const Part& part = call.gives[to];
    char* const cells = call.segments[to] + half + call.rank * call.cells;
    for (Number at = begin; at == 0 || at < packs_of(part.bytes); at += stride) {
      Pack<Format> pack;
      pack.load(call.input + part.offset + at * pack_bytes, part.bytes == 0 ? 0 : valid_of<Format>(part.bytes, at), call.width);
      write_half_cell(cells + at * cell_bytes, pack.words.word[0], pack.words.word[1], call.shot);
      write_half_cell(cells + at * cell_bytes + pack_bytes, pack.words.word[2], pack.words.word[3], call.shot);
    }
  }
}

// Waits for it. False: the call was ended.
__device__ inline bool read_cell(const Call& call, const char* cells, Number at, Words& words, unsigned& looks) {
  const char* const cell = cells + at * cell_bytes;
  while (!read_half_cell(cell, words.word[0], words.word[1], call.shot) ||
         !read_half_cell(cell + pack_bytes, words.word[2], words.word[3], call.shot)) {
    if (ended_after(call, looks)) return false;
  }
  return true;
}

template <class Format>
__device__ inline void reduce_cells(const Call& call, const char* cells, Number begin, Number stride) {
  unsigned looks = 0;
  for (Number at = begin; at == 0 || at < packs_of(call.own.bytes); at += stride) {
    const unsigned valid = call.own.bytes == 0 ? 0 : valid_of<Format>(call.own.bytes, at);
    Sum<Format> result;
#pragma unroll 1
    for (unsigned from = 0; from < call.ranks; ++from) {
      Pack<Format> pack;
      if (from == call.rank) {
        pack.load(call.input + call.own.offset + at * pack_bytes, valid, call.width);
      } else if (!read_cell(call, cells + from * call.cells, at, pack.words, looks)) {
        return;
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
__device__ inline void take_cells(const Call& call, const char* cells, Number begin, Number stride) {
  unsigned looks = 0;
  for (unsigned i = 0; i < call.ranks; ++i) {
    const unsigned from = (call.rank + i) % call.ranks;
    const Part& part = call.takes[from];
    const char* const own = call.input + call.gives[from].offset;
    char* const output = call.output + part.offset;
    if (i == 0 && own == output) continue;
    for (Number at = begin; at == 0 || at < packs_of(part.bytes); at += stride) {
      const unsigned valid = part.bytes == 0 ? 0 : valid_of<Format>(part.bytes, at);
      Pack<Format> pack;
      if (i == 0) {
        pack.load(own + at * pack_bytes, valid, call.width);
      } else if (!read_cell(call, cells + from * call.cells, at, pack.words, looks)) {
        return;
      }
      pack.store(output + at * pack_bytes, valid, call.width);
    }
  }
}

// Bytes are handed on as unsigned numbers.
template <class Format>
constexpr bool hands_on = !Format::floating && static_cast<typename Format::Wide>(-1) > static_cast<typename Format::Wide>(0);

template <class Format>
__device__ inline void exchange(const Call& call) {
  const Number stride = static_cast<Number>(gridDim.x) * blockDim.x;
  const Number begin = static_cast<Number>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Number half = call.cells_at + (call.shot % 2) * call.ranks * call.cells;
  give_in_cells<Format>(call, half, begin, stride);
  const char* const cells = call.segments[call.rank] + half;
  if (call.sources != 0) return reduce_cells<Format>(call, cells, begin, stride);
  if constexpr (hands_on<Format>) take_cells<Format>(call, cells, begin, stride);
}

template <class Format>
__device__ inline void run(const Call& call) {
  if (call.steps == 0) return exchange<Format>(call);
  if (call.sources != 0) return pass<Format>(call);
  if constexpr (hands_on<Format>) hand_on<Format>(call);
}

}  // namespace hmc_mapped_kernel

#define HMC_MAPPED_KERNEL(name, ...)                                                       \
  extern "C" __global__ void __launch_bounds__(512) name(hmc_mapped_kernel::Call call) { \
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
