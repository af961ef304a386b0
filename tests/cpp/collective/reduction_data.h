// What ranks reduce, and what comes out.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/job.h"

namespace hmc::testing {

// Numbers near 1 of either sign where the type has them: no NaN, whose bits are the reducer's choice, and no overflow.
Bytes input(DataType type, std::size_t count, std::size_t rank);
// Of similar size and any sign, so that sums in different orders differ.
Bytes inexact_input(DataType type, std::size_t count, std::size_t source);

// By one process, in the order of `inputs`, which are of the reduction's type.
Bytes reduced(const Reduction& reduction, const std::vector<Bytes>& inputs);
// Of the input() of every rank.
Bytes expected(const Reduction& reduction, std::size_t count, std::size_t ranks);

}  // namespace hmc::testing
