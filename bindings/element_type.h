// The element types of arrays, for collectives that reduce.
#pragma once

#include "common.h"
#include "hmc/reduce.h"

namespace hmc::bindings {

// What `array` holds, or `dtype` where it is given: a name ("f32", "float32", "bfloat16"), or what numpy.dtype() takes, or torch's.
// Throws TypeError: no type is known (Memory and ConnBuffer), or none that can be reduced.
DataType element_type_of(py::handle array, py::handle dtype);

// From the arguments of a call. `out` and `inp` hold the same type; `out` may be None. `factor`: None, or a number with
// op="premul_sum".
Reduction reduction_of(py::handle out, py::handle inp, std::string_view op, py::handle factor, py::handle dtype);

}  // namespace hmc::bindings
