// The text of copy_blocks.cu; CMake writes the definition.
#pragma once

namespace hmc {

extern const char copy_blocks_source[];

}  // namespace hmc
