// Scattered blocks in one launch. tools/make_ptx.sh turns this into ptx/copy_blocks.ptx, which the driver compiles for the device at
// hand: a machine with the driver alone is enough.
//
// Block i of `bytes` bytes goes from source + source_offsets[i] to target + target_offsets[i]. All of it is one row of words, cut
// into tiles of at most four words per thread, however long the blocks are: short ones share a tile, long ones take many. The
// offsets may lie in host memory: each group of threads fetches those of its next tile while it copies the present one.
// Any grid, up to 1024 threads. `width`, 16, 8, 4 or 1, divides every address and `bytes`.

constexpr unsigned most_threads = 1024;
constexpr unsigned unroll = 4;

struct Blocks {
  char* target;
  const char* source;
  const unsigned long long* target_offsets;
  const unsigned long long* source_offsets;
  unsigned long long count;
  unsigned long long bytes;
};

template <class Word>
__device__ void copy_tiles(const Blocks& blocks, unsigned long long (*to)[most_threads], unsigned long long (*from)[most_threads]) {
  const unsigned long long words = blocks.bytes / sizeof(Word);  // of one block
  const unsigned long long all = blocks.count * words;
  const unsigned threads = blockDim.x;
  // A tile touches no more blocks than there are threads, for each fetches the offsets of one.
  const unsigned long long longest = (threads - 1) * words;
  const unsigned tile = longest < unroll * threads ? static_cast<unsigned>(longest) : unroll * threads;
  unsigned long long next_to = 0, next_from = 0;
  const auto fetch = [&](unsigned long long begin) {
    if (begin >= all) return;
    const unsigned long long block = begin / words + threadIdx.x;
    if (block < blocks.count && block * words < begin + tile) {
      next_to = blocks.target_offsets[block];
      next_from = blocks.source_offsets[block];
    }
  };
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * tile;
  unsigned long long begin = static_cast<unsigned long long>(blockIdx.x) * tile;
  unsigned half = 0;
  fetch(begin);
  for (; begin < all; begin += step, half ^= 1) {
    to[half][threadIdx.x] = next_to;
    from[half][threadIdx.x] = next_from;
    // One barrier is enough: the half written at the next turn was read before this one.
    __syncthreads();
    fetch(begin + step);
    const unsigned long long into = begin % words;  // where the tile begins in its first block
    Word held[unroll];
    Word* place[unroll];
    // Loads before stores: several are under way at a time.
    for (unsigned k = 0; k < unroll; ++k) {
      const unsigned at = k * threads + threadIdx.x;
      place[k] = nullptr;
      if (at >= tile || begin + at >= all) continue;
      unsigned block;
      unsigned long long word;
      if (words >= tile) {  // two blocks at most
        word = into + at;
        block = word >= words ? 1 : 0;
        if (block != 0) word -= words;
      } else {
        const unsigned flat = static_cast<unsigned>(into) + at;
        block = flat / static_cast<unsigned>(words);
        word = flat - block * static_cast<unsigned>(words);
      }
      place[k] = reinterpret_cast<Word*>(blocks.target + to[half][block]) + word;
      held[k] = reinterpret_cast<const Word*>(blocks.source + from[half][block])[word];
    }
    for (unsigned k = 0; k < unroll; ++k) {
      if (place[k] != nullptr) *place[k] = held[k];
    }
  }
}

extern "C" __global__ void __launch_bounds__(most_threads)
    hmc_copy_blocks(char* target, const char* source, const unsigned long long* target_offsets,
                    const unsigned long long* source_offsets, unsigned long long count, unsigned long long bytes, unsigned width) {
  __shared__ unsigned long long to[2][most_threads];
  __shared__ unsigned long long from[2][most_threads];
  const Blocks blocks{target, source, target_offsets, source_offsets, count, bytes};
  if (width == 16) {
    copy_tiles<uint4>(blocks, to, from);
  } else if (width == 8) {
    copy_tiles<unsigned long long>(blocks, to, from);
  } else if (width == 4) {
    copy_tiles<unsigned int>(blocks, to, from);
  } else {
    copy_tiles<unsigned char>(blocks, to, from);
  }
}
