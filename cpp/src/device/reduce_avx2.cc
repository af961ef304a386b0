#if defined(__x86_64__)
#define HMC_REDUCE_VARIANT reduce_avx2
#include "device/reduce_loops.h"
#endif
