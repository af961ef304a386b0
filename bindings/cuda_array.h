// __cuda_array_interface__ (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html): device arrays without a copy.
#pragma once

#include "common.h"

namespace hmc::bindings {

struct CudaArray {
  Memory memory;         // owns nothing: the caller keeps the array
  Device device;         // the memory's; of an empty array, what its protocols say (device_of_empty)
  bool on_host = false;  // no runtime of this process knows the memory: pinned memory of the host, or nobody's
  bool read_only = false;
  py::object stream;  // what the producer declares
};

// Asks `array` for its memory. Throws InvalidArgumentError when it is not contiguous, masked or not what the protocol says.
CudaArray take_cuda_array(py::handle array);
// `memory` as one-dimensional uint8. Throws AttributeError on devices whose libraries do not use the protocol.
py::dict give_cuda_array(const Memory& memory);

}  // namespace hmc::bindings
