#define HMC_REDUCE_VARIANT reduce_baseline
#include "device/reduce_loops.h"
