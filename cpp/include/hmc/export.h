// Symbol visibility of the installed API. Everything else in libhmc.so is hidden.
#pragma once

#if defined(HMC_STATIC)
#define HMC_API
#else
#define HMC_API [[gnu::visibility("default")]]
#endif
