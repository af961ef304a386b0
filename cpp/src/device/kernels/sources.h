// The texts of the kernels' sources; CMake writes the definitions.
#pragma once

namespace hmc {

extern const char copy_blocks_source[];
extern const char reduce_source[];
extern const char page_rows_source[];      // stands behind reduce_source
extern const char pages_source[];          // stands behind both
extern const char weighted_sum_source[];   // stands behind reduce_source
extern const char mapped_memory_source[];  // stands behind reduce_source
extern const char mapped_source[];         // stands behind that and reduce_source

}  // namespace hmc
