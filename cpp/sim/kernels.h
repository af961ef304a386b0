// Kernels, as far as they are simulated: an image that names them is loaded, and HMC's run: that for scattered blocks by doing what
// cpp/src/device/kernels/copy_blocks.cu says of itself, those that reduce as they are.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core.h"
#include "streams.h"

namespace hmc::sim {

struct Launch {
  unsigned groups;   // of threads
  unsigned threads;  // of a group
  void** arguments;
};

// `image`: text, in which the names of its kernels occur. False: it holds none that could run here.
bool can_run(const char* image);
Error load_module(const char* image, void** module);
Error find_kernel(void* module, const char* name, void** kernel);
// Of the kernel hmc_reduce_<type>: checks a launch and makes the operation. not_found: it is none.
Error prepare_reduce(const std::string& name, const Launch& launch, std::function<Error()>& work);
// What that kernel does, on host memory, now. `op`: number of hmc::ReduceOp; `divisor`: of the result.
void reduce_host(const std::string& type, void* target, const std::vector<const void*>& sources, std::size_t count, unsigned op,
                 unsigned divisor);
// As prepare_reduce(), of the kernel hmc_mapped_<type>.
Error prepare_mapped(const std::string& name, const Launch& launch, std::function<Error()>& work);
// As prepare_reduce(), of the kernels for pages of KV caches.
Error prepare_pages(const std::string& name, const Launch& launch, std::function<Error()>& work);
// As prepare_reduce(), of the kernel hmc_weighted_sum_<type>.
Error prepare_weighted_sum(const std::string& name, const Launch& launch, std::function<Error()>& work);
Error launch(void* kernel, const Launch& launch, const StreamRef& stream);

}  // namespace hmc::sim
