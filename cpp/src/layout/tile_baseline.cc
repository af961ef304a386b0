#define HMC_TILE_VARIANT tile_baseline
#define HMC_TILE_NAME "baseline"
#include "layout/tile_loops.h"
