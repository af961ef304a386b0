// A rank's share of a collective of device memory, as one kernel over memory that the devices of all ranks map: of one that
// reduces, and of one that hands bytes on as they are. Stands behind reduce.cu, whose formats and arithmetic it uses, and
// mapped_memory.cu. tools/make_ptx.sh turns all into ptx/mapped_<type>.ptx. HMC_MAPPED_<type> defines the kernel of that type,
// HMC_MAPPED_ALL those of all.

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

// ---- rounds ----

struct Copy {
  char* to;
  const char* from;
  Number bytes;
};

// What a block does in a round. Filled in by some of its threads.
struct Round {
  Copy pushes[most_ranks], takes[most_ranks];
  const char* sources[most_ranks];  // from rank `source` on
  char* results[most_ranks];        // of the ranks that get the result
  Number reduces;                   // bytes
  unsigned result_count;
};

// By some threads. Of `count` copies four packs are on their way at a time, of up to four of them.
template <class Format>
__device__ __noinline__ void copy(const Copy* copies, unsigned count, unsigned width, Threads threads) {
  for (unsigned first = 0; first < count; first += most_ahead) {
    const unsigned together = count - first < most_ahead ? count - first : most_ahead;
    const unsigned packs_each = together == 1 ? 4 : together == 2 ? 2 : 1;
    const Words* from[most_ahead];
    Words* to[most_ahead];
    Number whole[most_ahead], longest = 0;
#pragma unroll
    for (unsigned i = 0; i < most_ahead; ++i) {
      const Copy& one = copies[first + i % together];
      const Number ahead = static_cast<Number>(i / together) * threads.count;
      const Number packs = width == pack_bytes && i < together * packs_each ? one.bytes / pack_bytes : 0;
      from[i] = reinterpret_cast<const Words*>(one.from) + ahead;
      to[i] = reinterpret_cast<Words*>(one.to) + ahead;
      whole[i] = packs > ahead ? packs - ahead : 0;
      longest = whole[i] > longest ? whole[i] : longest;
    }
    const Number step = static_cast<Number>(packs_each) * threads.count;
    for (Number at = threads.index(); at < longest; at += step) {
      Words words[most_ahead];
#pragma unroll
      for (unsigned i = 0; i < most_ahead; ++i) {
        if (at < whole[i]) words[i] = from[i][at];
      }
#pragma unroll
      for (unsigned i = 0; i < most_ahead; ++i) {
        if (at < whole[i]) to[i][at] = words[i];
      }
    }
    // What is no whole pack, or not aligned to one.
#pragma unroll 1
    for (unsigned i = 0; i < together; ++i) {
      const Copy& one = copies[first + i];
      const Number done = width == pack_bytes ? one.bytes / pack_bytes : 0;
#pragma unroll 1
      for (Number at = done + threads.index(); at < packs_of(one.bytes); at += threads.count) {
        const unsigned valid = valid_of<Format>(one.bytes, at);
        Pack<Format> pack;
        pack.load(one.from + at * pack_bytes, valid, width);
        pack.store(one.to + at * pack_bytes, valid, width);
      }
    }
  }
}

__device__ inline Words picked(const Words (&words)[most_ahead], unsigned at) {
  return at < 2 ? (at == 0 ? words[0] : words[1]) : (at == 2 ? words[2] : words[3]);
}

// In rank order, each element once, by some threads. A thread loads some packs before it uses the first: what takes long is not their
// bytes but their way. Everything else has one place in the code, which is compiled for every operation.
template <class Format>
__device__ inline void reduce(const Call& call, const Round& round, Threads threads) {
  const Number packs = packs_of(round.reduces), stride = threads.count;
  const Number whole = call.width == pack_bytes ? round.reduces / pack_bytes : 0;
  // Of several packs all sources, or of one pack some.
  const unsigned at_once = call.sources == 1 ? most_ahead : call.sources == 2 ? 2 : 1;
  Words words[most_ahead];
  const auto load_ahead = [&](Number at, unsigned first) {
#pragma unroll
    for (unsigned i = 0; i < most_ahead; ++i) {
      const unsigned from = at_once == 1 ? first + i : call.sources == 1 ? 0 : i % 2;
      const Number pack = at + (at_once == 1 ? 0 : call.sources == 1 ? i : i / 2) * stride;
      if (from < call.sources && pack < whole) words[i] = reinterpret_cast<const Words*>(round.sources[from])[pack];
    }
  };
  for (Number at = threads.index(); at < packs; at += at_once * stride) {
    load_ahead(at, 0);
#pragma unroll 1
    for (unsigned i = 0; i < at_once; ++i) {
      const Number pack = at + i * stride;
      if (pack >= packs) break;
      const unsigned valid = valid_of<Format>(round.reduces, pack);
      Sum<Format> result;
      Pack<Format> next;
#pragma unroll 1
      for (unsigned from = 0; from < call.sources; ++from) {
        if (from != 0 && from % most_ahead == 0) load_ahead(at, from);
        if (pack < whole) {
          next.words = picked(words, (i * call.sources + from) % most_ahead);
        } else {
          next.load(round.sources[from] + pack * pack_bytes, valid, call.width);
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
      for (unsigned to = 0; to < round.result_count; ++to) next.store(round.results[to] + pack * pack_bytes, valid, call.width);
    }
  }
}

// What chunk `step` of the call is, and where it lies, with the slots of the rounds in which it was pushed and reduced. Chunks that
// do not exist have no bytes.
__device__ inline Part piece_of(const Call& call, const Part& part, Number step) {
  return step < call.steps ? piece(call, part, step) : Part{part.offset, 0};
}

__device__ inline void describe_pushes(const Call& call, Number step, Threads threads, Round& round) {
  for (unsigned i = threads.index(); i + 1 < call.ranks; i += threads.count) {
    const unsigned to = (call.rank + i + 1) % call.ranks;
    const Part what = piece_of(call, call.gives[to], step);
    round.pushes[i] = {slot_of(call, to, pushed, call.rank, call.first + step), call.input + what.offset, what.bytes};
  }
}

// `filled`: the round in which the others put chunk `step` into this rank's slots of that kind.
__device__ inline void describe_takes(const Call& call, Kind kind, Number step, Number filled, Threads threads, Round& round) {
  for (unsigned i = threads.index(); i + 1 < call.ranks; i += threads.count) {
    const unsigned from = (call.rank + i + 1) % call.ranks;
    const Part what = piece_of(call, call.takes[from], step);
    round.takes[i] = {call.output + what.offset, slot_of(call, call.rank, kind, from, filled), what.bytes};
  }
}

// What the rank gives itself.
__device__ inline void describe_kept(const Call& call, Number step, Round& round) {
  const Part to = piece_of(call, call.takes[call.rank], step), from = piece_of(call, call.gives[call.rank], step);
  round.takes[call.ranks - 1] = {call.output + to.offset, call.input + from.offset, to.bytes};
}

__device__ inline void describe_reduction(const Call& call, Number step, Number now, Threads threads, Round& round) {
  const Part what = piece_of(call, call.own, step);
  for (unsigned i = threads.index(); i < call.sources; i += threads.count) {
    const unsigned from = call.source + i;
    round.sources[i] =
        from == call.rank ? call.input + what.offset : slot_of(call, call.rank, pushed, from, call.first + step);
  }
  if (threads.index() != 0) return;
  unsigned count = 0;
  for (unsigned to = 0; to < call.ranks; ++to) {
    if (to == call.rank && call.keeps != 0) round.results[count++] = call.output + call.kept_at + (what.offset - call.own.offset);
    if (to != call.rank && (call.collectors >> to & 1U)) round.results[count++] = slot_of(call, to, reduced, call.rank, now);
  }
  round.result_count = count;
  round.reduces = what.bytes;
}

// Of the working threads, those that come behind `before` parts of `all`: `parts` of them.
__device__ inline Threads share(const Roles& roles, unsigned before, unsigned parts, unsigned all) {
  if (roles.together || parts == 0) return {0, parts == 0 ? 0 : blockDim.x};
  const unsigned warps = roles.working.count / warp, first = warps * before / all, end = warps * (before + parts) / all;
  return {roles.working.first + first * warp, (end - first) * warp};
}

// Which parts of the working threads do what in a round: none that there is nothing to do for.
struct Shares {
  unsigned pushing, reducing, taking;
};

// The rounds of a call with or without a reduction. Some threads look ahead, to the round that comes next, and some are behind; hence
// two rounds are described, and a round that ends the call does not say so where another one is looked for.
template <class Format, bool reduces>
__device__ inline void run_rounds(const Call& call) {
  __shared__ Round rounds[2];
  __shared__ unsigned ended_in[4];
  const Roles roles;
  const bool begins = roles.beginning.contain(), tells = roles.telling.contain(), works = roles.working.contain();
  const bool collects = !reduces || (call.collectors >> call.rank & 1U);
  const bool keeps = !reduces && call.input + call.gives[call.rank].offset != call.output + call.takes[call.rank].offset;
  bool gives = false;
  for (unsigned r = 0; r < call.ranks; ++r) gives = gives || (r != call.rank && call.gives[r].bytes != 0);
  const Number taken_after = reduces ? 2 * call.lag : call.lag;
  const Number count = call.steps + (call.collectors != 0 || !reduces ? taken_after : call.lag);
  for (unsigned i = threadIdx.x; i < 4; i += blockDim.x) ended_in[i] = 0;
  __syncthreads();
  for (Number i = 0; i < count; ++i) {
    Round& round = rounds[i % 2];
    unsigned& ended = ended_in[i % 4];
    const Number now = call.first + i;
    // Steps before the first one are none, as they are beyond the last.
    if (begins) {
      describe_pushes(call, i, roles.beginning, round);
      if (reduces) describe_reduction(call, i - call.lag, now, roles.beginning, round);
      describe_takes(call, reduces ? reduced : pushed, i - taken_after, now - call.lag, roles.beginning, round);
      if (keeps && roles.beginning.index() == 0) describe_kept(call, i - taken_after, round);
      await(call, now, roles.beginning, ended);
    }
    meet(roles, round_begins, begins || works);
    if (works && ended == 0) {
      const Shares parts = {gives && i < call.steps ? 3U : 0U,
                            reduces && call.own.bytes != 0 && i - call.lag < call.steps ? 3U : 0U,
                            collects && i - taken_after < call.steps ? 2U : 0U};
      const unsigned all = parts.pushing + parts.reducing + parts.taking;
      const Threads pushing = share(roles, 0, parts.pushing, all), reducing = share(roles, parts.pushing, parts.reducing, all),
                    taking = share(roles, parts.pushing + parts.reducing, parts.taking, all);
      if (pushing.contain()) copy<Format>(round.pushes, call.ranks - 1, call.width, pushing);
      if (reduces && reducing.contain()) reduce<Format>(call, round, reducing);
      if (taking.contain()) copy<Format>(round.takes, call.ranks - (keeps ? 0 : 1), call.width, taking);
    }
    meet(roles, round_ends, tells || works);
    if (ended != 0) return;
    if (tells && roles.telling.index() == 0) tell(call, now);
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
      write_half_cell(half_cell(cells, at, 0), pack.words.word[0], pack.words.word[1], call.shot);
      write_half_cell(half_cell(cells, at, 1), pack.words.word[2], pack.words.word[3], call.shot);
    }
  }
}

// Waits for it. False: the call was ended.
__device__ inline bool read_cell(const Call& call, char* cells, Number at, Words& words, unsigned& looks) {
  for (;;) {
    // Both are on their way before one is looked at.
    const bool first = read_half_cell(half_cell(cells, at, 0), words.word[0], words.word[1], call.shot);
    const bool second = read_half_cell(half_cell(cells, at, 1), words.word[2], words.word[3], call.shot);
    if (first && second) return true;
    if (ended_after(call, looks)) return false;
  }
}

template <class Format>
__device__ inline void reduce_cells(const Call& call, char* cells, Number begin, Number stride) {
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
__device__ inline void take_cells(const Call& call, char* cells, Number begin, Number stride) {
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
  char* const cells = call.segments[call.rank] + half;
  if (call.sources != 0) return reduce_cells<Format>(call, cells, begin, stride);
  if constexpr (hands_on<Format>) take_cells<Format>(call, cells, begin, stride);
}

template <class Format>
__device__ inline void run(const Call& call) {
  if (call.steps == 0) return exchange<Format>(call);
  if (call.sources != 0) return run_rounds<Format, true>(call);
  if constexpr (hands_on<Format>) run_rounds<Format, false>(call);
}

}  // namespace hmc_mapped_kernel

#define HMC_MAPPED_KERNEL(name, ...)                                                       \
  extern "C" __global__ void __launch_bounds__(640) name(hmc_mapped_kernel::Call call) { \
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
