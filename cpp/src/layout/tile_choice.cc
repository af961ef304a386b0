#include "device/reduce.h"
#include "device/reduce_variants.h"
#include "layout/tile.h"

namespace hmc {

const TileKernels& tile_kernels() noexcept {
#if defined(__x86_64__)
  static const bool vectors = [] {
    for (const ReduceVariant& variant : reduce_variants()) {
      if (std::string_view(variant.name) == "avx2") return variant.usable;
    }
    return false;
  }();
  if (vectors) return tile_avx2;
#endif
  return tile_baseline;
}

}  // namespace hmc
