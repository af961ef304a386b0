// The CUDA driver's side of the simulation: contexts, and how its entry points begin. Values and layouts are those of cuda.h.
#pragma once

#include <cstdint>
#include <optional>

#include "abi.h"
#include "streams.h"

namespace hmc::sim::cuda {

// The primary context of a device; there are no others.
struct Context {
  int device = 0;
  int retained = 0;  // under the lock of cuda_driver.cc
};
Context* primary_context(int device);
bool initialized();
// The context on top of the calling thread's stack, or null.
Context* current_context();
// 0 when the thread has a context that is alive, which goes to `context`; else the driver's code.
int require_context(Context** context);

}  // namespace hmc::sim::cuda

// The beginning of every entry point but a few: injected errors, then cuInit.
#define HMC_SIM_ENTER                                                                 \
  if (const int code_ = hmc::sim::injected_error(__func__); code_ != 0) return code_; \
  if (!hmc::sim::cuda::initialized()) return hmc::sim::cuda_not_initialized

// And for those that need a current context, which they find in `context`.
#define HMC_SIM_ENTER_CONTEXT                 \
  HMC_SIM_ENTER;                              \
  hmc::sim::cuda::Context* context = nullptr; \
  if (const int code_ = hmc::sim::cuda::require_context(&context); code_ != 0) return code_
