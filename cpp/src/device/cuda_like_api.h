// What HMC calls of a runtime that follows the CUDA runtime API under another prefix: names without it, types and values as in
// HIP's hip_runtime_api.h (5.2 and 7.1). tests/sim/header_conformance compares these very declarations with those headers.
#pragma once

#include <cstddef>

#include "device/library.h"
#include "device/vendor_calls.h"

namespace hmc::cuda_like {

constexpr VendorCodes codes{{600, 600}, 2, 801, 100, 400, 712};
constexpr int peer_access_already_enabled = 704;
constexpr unsigned stream_non_blocking = 1;
constexpr unsigned event_disable_timing = 2;
constexpr unsigned host_register_portable = 1;
constexpr unsigned malloc_uncached = 3;
// Versions disagree (0 in HIP 5.2, 1 from 6 on), and some refuse any value but theirs: the one that is taken is right.
constexpr unsigned ipc_lazy_peer_access[] = {1, 0};
constexpr int invalid_value = 1;
constexpr int range_dma_buf = 1;
constexpr int kind_to_device = 1, kind_to_host = 2, kind_on_device = 3;

// hipPointerAttribute_t and cudaPointerAttributes agree in what is read here.
struct Attributes {
  int type;
  int device;
  void* device_pointer;
  void* rest[14];  // room for what a version appends
};

// clang-format off
#define HMC_CUDA_LIKE_CALLS(CALL)                                                                      \
  CALL(device_count, GetDeviceCount, int(int*))                                                        \
  CALL(device_get, GetDevice, int(int*))                                                               \
  CALL(device_set, SetDevice, int(int))                                                                \
  CALL(device_pci, DeviceGetPCIBusId, int(char*, int, int))                                            \
  CALL(enable_peer, DeviceEnablePeerAccess, int(int, unsigned))                                        \
  CALL(allocate, Malloc, int(void**, std::size_t))                                                     \
  CALL(release, Free, int(void*))                                                                      \
  CALL(attributes, PointerGetAttributes, int(Attributes*, const void*))                                \
  CALL(pin, HostRegister, int(void*, std::size_t, unsigned))                                           \
  CALL(unpin, HostUnregister, int(void*))                                                              \
  CALL(ipc_get, IpcGetMemHandle, int(IpcHandle*, void*))                                               \
  CALL(ipc_open, IpcOpenMemHandle, int(void**, IpcHandle, unsigned))                                   \
  CALL(ipc_close, IpcCloseMemHandle, int(void*))                                                       \
  CALL(stream_create, StreamCreateWithFlags, int(VendorStream*, unsigned))                             \
  CALL(stream_query, StreamQuery, int(VendorStream))                                                   \
  CALL(copy, MemcpyAsync, int(void*, const void*, std::size_t, int, VendorStream))                     \
  CALL(fill, MemsetAsync, int(void*, int, std::size_t, VendorStream))                                  \
  CALL(event_create, EventCreateWithFlags, int(VendorEvent*, unsigned))                                \
  CALL(event_record, EventRecord, int(VendorEvent, VendorStream))                                      \
  CALL(event_query, EventQuery, int(VendorEvent))                                                      \
  CALL(stream_wait, StreamWaitEvent, int(VendorStream, VendorEvent, unsigned))                         \
  CALL(error_name, GetErrorName, const char*(int))

// Those that a version or a vendor may lack.
#define HMC_CUDA_LIKE_OPTIONAL_CALLS(CALL)                                                             \
  CALL(init, Init, int(unsigned))                                                                      \
  CALL(last_error, GetLastError, int())                                                                \
  CALL(call_host, LaunchHostFunc, int(VendorStream, void (*)(void*), void*))                           \
  CALL(can_reach, DeviceCanAccessPeer, int(int*, int, int))                                            \
  CALL(allocate_with_flags, ExtMallocWithFlags, int(void**, std::size_t, unsigned))

// And those of them that the driver's interface has where the runtime's lacks them.
#define HMC_CUDA_LIKE_DRIVER_CALLS(CALL)                                                               \
  CALL(device_name, DeviceGetName, int(char*, int, int))                                               \
  CALL(device_memory, DeviceTotalMem, int(std::size_t*, int))                                          \
  CALL(range, MemGetAddressRange, int(void**, std::size_t*, void*))

// And those that HIP has had since 7, with the driver's interface likewise.
#define HMC_CUDA_LIKE_NEWER_CALLS(CALL)                                                                \
  CALL(dma_buf, MemGetHandleForAddressRange, int(void*, void*, std::size_t, int, unsigned long long))
// clang-format on

struct Api {
  HMC_CUDA_LIKE_CALLS(HMC_CALL_MEMBER)
  HMC_CUDA_LIKE_OPTIONAL_CALLS(HMC_CALL_MEMBER)
  HMC_CUDA_LIKE_DRIVER_CALLS(HMC_CALL_MEMBER)
  HMC_CUDA_LIKE_NEWER_CALLS(HMC_CALL_MEMBER)
};

}  // namespace hmc::cuda_like
