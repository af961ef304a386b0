// Scattered blocks in one launch. tools/make_ptx.sh turns this into copy_blocks_ptx.h, which the driver compiles for the device at
// hand: a machine with the driver alone is enough.
//
// Block i of `bytes` bytes goes from source + source_offsets[i] to target + target_offsets[i]. Any grid, any number of threads. One
// group of threads takes a block at a time, in the widest accesses that both its ends and its size allow.

template <class Word>
__device__ void copy_block(char* target, const char* source, unsigned long long bytes) {
  auto* to = reinterpret_cast<Word*>(target);
  const auto* from = reinterpret_cast<const Word*>(source);
  const unsigned long long words = bytes / sizeof(Word);
  constexpr int unroll = 4;
  unsigned long long i = threadIdx.x;
  // Loads before stores: several are under way at a time.
  for (; i + (unroll - 1) * blockDim.x < words; i += unroll * blockDim.x) {
    Word held[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k) held[k] = from[i + k * blockDim.x];
#pragma unroll
    for (int k = 0; k < unroll; ++k) to[i + k * blockDim.x] = held[k];
  }
  for (; i < words; i += blockDim.x) to[i] = from[i];
}

extern "C" __global__ void hmc_copy_blocks(char* target, const char* source, const unsigned long long* target_offsets,
                                           const unsigned long long* source_offsets, unsigned long long count,
                                           unsigned long long bytes) {
  for (unsigned long long block = blockIdx.x; block < count; block += gridDim.x) {
    char* to = target + target_offsets[block];
    const char* from = source + source_offsets[block];
    const unsigned long long low = reinterpret_cast<unsigned long long>(to) | reinterpret_cast<unsigned long long>(from) | bytes;
    if (low % 16 == 0) {
      copy_block<uint4>(to, from, bytes);
    } else if (low % 8 == 0) {
      copy_block<unsigned long long>(to, from, bytes);
    } else if (low % 4 == 0) {
      copy_block<unsigned int>(to, from, bytes);
    } else {
      copy_block<unsigned char>(to, from, bytes);
    }
  }
}
