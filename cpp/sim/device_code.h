// What CUDA C is on the host: one thread at a time, which is all of its group. For kernels that any group can run.
#pragma once

#include <sched.h>

namespace hmc::sim {

// While a kernel waits for another device. That may be a thread that waits for this core.
inline void relax() { sched_yield(); }

struct Index {
  unsigned x = 0;
};
inline thread_local Index thread_index, block_index, group_size{1}, grid_size;

// Runs `kernel` for each group of a grid, one after the other.
template <class Kernel>
void run_grid(unsigned groups, const Kernel& kernel) {
  grid_size.x = groups;
  for (block_index.x = 0; block_index.x < groups; ++block_index.x) kernel();
}

}  // namespace hmc::sim

// Blocks run one after the other, launches on several streams at a time.
template <class T>
T atomicAdd(T* at, T value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

#define __device__
#define __global__
#define __launch_bounds__(threads)
#define __noinline__
#define __shared__
#define __syncthreads() static_cast<void>(0)
#define threadIdx hmc::sim::thread_index
#define blockIdx hmc::sim::block_index
#define blockDim hmc::sim::group_size
#define gridDim hmc::sim::grid_size
