#if defined(__x86_64__)
#define HMC_TILE_VARIANT tile_avx2
#define HMC_TILE_NAME "avx2"
#include "layout/tile_loops.h"
#endif
