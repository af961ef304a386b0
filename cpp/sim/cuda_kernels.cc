// Simulated CUDA driver: modules and kernels.
#include "cuda_abi.h"
#include "kernels.h"

using hmc::sim::cuda_code;
using hmc::sim::Error;
namespace sim = hmc::sim;

// PTX, which is text. A cubin or a fat binary is not told from it: HMC has none.
HMC_SIM_EXPORT int cuModuleLoadData(void** module, const void* image) {
  HMC_SIM_ENTER_CONTEXT;
  if (!sim::can_run(static_cast<const char*>(image))) return sim::cuda_not_supported;  // callers copy instead
  return cuda_code(sim::load_module(static_cast<const char*>(image), module));
}

HMC_SIM_EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::find_kernel(module, name, function));
}

HMC_SIM_EXPORT int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                  unsigned block_y, unsigned block_z, unsigned /*shared_bytes*/, void* stream, void** arguments,
                                  void** extra) {
  HMC_SIM_ENTER_CONTEXT;
  if (extra != nullptr) return cuda_code(Error::invalid_value);
  const sim::Launch launch{grid_x * grid_y * grid_z, block_x * block_y * block_z, arguments};
  return cuda_code(sim::launch(function, launch, sim::find_stream(stream, context->device)));
}
