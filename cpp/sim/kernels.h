// Kernels, as far as they are simulated: an image that names them is loaded, and one runs, HMC's for scattered blocks, by doing
// what cpp/src/device/kernels/copy_blocks.cu says of itself.
#pragma once

#include <cstddef>
#include <string>

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
Error launch(void* kernel, const Launch& launch, const StreamRef& stream);

}  // namespace hmc::sim
