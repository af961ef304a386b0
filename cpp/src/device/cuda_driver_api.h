// What HMC calls of NVIDIA's driver: names (the versioned ones are the real ones), types and values as in NVIDIA's cuda.h, which
// nothing here needs. tests/sim/header_conformance compares these very declarations with that header.
#pragma once

#include <cstddef>

#include "device/library.h"
#include "device/vendor_calls.h"

namespace hmc::cuda_driver {

using Pointer = unsigned long long;  // CUdeviceptr
using Context = void*;
using Handle = unsigned long long;  // CUmemGenericAllocationHandle
struct Access {                     // CUmemAccessDesc
  int location_type;
  int location;
  int flags;
};

constexpr VendorCodes codes{{600, 600}, 2, 801, 100, 400, 712};
constexpr int invalid_value = 1;
constexpr int peer_access_already_enabled = 704;
constexpr unsigned stream_non_blocking = 1;
constexpr unsigned event_disable_timing = 2;
constexpr unsigned host_register_portable = 1;
constexpr unsigned host_register_read_only = 8;
constexpr unsigned ipc_lazy_peer_access = 1;
constexpr int memory_type_device = 2;
constexpr int attribute_memory_type = 2;  // of pointers
constexpr int attribute_buffer_id = 7;
constexpr int attribute_device_ordinal = 9;
constexpr int attribute_range_start = 11;
constexpr int attribute_range_size = 12;
constexpr int device_compute_capability_major = 75;
constexpr int p2p_access_supported = 2;  // of pairs of devices
constexpr int p2p_native_atomics = 3;
constexpr int device_dma_buf_supported = 124;
constexpr int range_dma_buf = 1;     // kinds of handles of address ranges
constexpr int posix_descriptor = 1;  // kinds of handles of virtual memory
constexpr int location_device = 1;
constexpr int access_read_write = 3;

// clang-format off
#define HMC_CUDA_DRIVER_CALLS(CALL)                                                                    \
  CALL(init, cuInit, int(unsigned))                                                                    \
  CALL(device_count, cuDeviceGetCount, int(int*))                                                      \
  CALL(device_get, cuDeviceGet, int(int*, int))                                                        \
  CALL(device_name, cuDeviceGetName, int(char*, int, int))                                             \
  CALL(device_pci, cuDeviceGetPCIBusId, int(char*, int, int))                                          \
  CALL(device_memory, cuDeviceTotalMem_v2, int(std::size_t*, int))                                     \
  CALL(retain, cuDevicePrimaryCtxRetain, int(Context*, int))                                           \
  CALL(current, cuCtxGetCurrent, int(Context*))                                                        \
  CALL(push, cuCtxPushCurrent_v2, int(Context))                                                        \
  CALL(pop, cuCtxPopCurrent_v2, int(Context*))                                                         \
  CALL(enable_peer, cuCtxEnablePeerAccess, int(Context, unsigned))                                     \
  CALL(allocate, cuMemAlloc_v2, int(Pointer*, std::size_t))                                            \
  CALL(release, cuMemFree_v2, int(Pointer))                                                            \
  CALL(attributes, cuPointerGetAttributes, int(unsigned, int*, void**, Pointer))                       \
  CALL(pin, cuMemHostRegister_v2, int(void*, std::size_t, unsigned))                                   \
  CALL(unpin, cuMemHostUnregister, int(void*))                                                         \
  CALL(ipc_get, cuIpcGetMemHandle, int(IpcHandle*, Pointer))                                           \
  CALL(ipc_open, cuIpcOpenMemHandle_v2, int(Pointer*, IpcHandle, unsigned))                            \
  CALL(ipc_close, cuIpcCloseMemHandle, int(Pointer))                                                   \
  CALL(stream_create, cuStreamCreate, int(VendorStream*, unsigned))                                    \
  CALL(stream_query, cuStreamQuery, int(VendorStream))                                                 \
  CALL(to_device, cuMemcpyHtoDAsync_v2, int(Pointer, const void*, std::size_t, VendorStream))          \
  CALL(to_host, cuMemcpyDtoHAsync_v2, int(void*, Pointer, std::size_t, VendorStream))                  \
  CALL(on_device, cuMemcpyDtoDAsync_v2, int(Pointer, Pointer, std::size_t, VendorStream))              \
  CALL(fill, cuMemsetD8Async, int(Pointer, unsigned char, std::size_t, VendorStream))                  \
  CALL(event_create, cuEventCreate, int(VendorEvent*, unsigned))                                       \
  CALL(event_record, cuEventRecord, int(VendorEvent, VendorStream))                                    \
  CALL(event_query, cuEventQuery, int(VendorEvent))                                                    \
  CALL(stream_wait, cuStreamWaitEvent, int(VendorStream, VendorEvent, unsigned))                       \
  CALL(error_name, cuGetErrorName, int(int, const char**))

// Those that it may lack.
#define HMC_CUDA_DRIVER_OPTIONAL_CALLS(CALL)                                                           \
  CALL(call_host, cuLaunchHostFunc, int(VendorStream, void (*)(void*), void*))                         \
  CALL(device_attribute, cuDeviceGetAttribute, int(int*, int, int))                                    \
  CALL(p2p_attribute, cuDeviceGetP2PAttribute, int(int*, int, int, int))                               \
  CALL(device_pointer, cuMemHostGetDevicePointer_v2, int(Pointer*, void*, unsigned))                   \
  CALL(dma_buf, cuMemGetHandleForAddressRange, int(void*, Pointer, std::size_t, int, unsigned long long))

// Virtual-memory management.
#define HMC_CUDA_CHUNK_CALLS(CALL)                                                                     \
  CALL(range, cuMemGetAddressRange_v2, int(Pointer*, std::size_t*, Pointer))                           \
  CALL(retain, cuMemRetainAllocationHandle, int(Handle*, void*))                                       \
  CALL(release, cuMemRelease, int(Handle))                                                             \
  CALL(export_handle, cuMemExportToShareableHandle, int(void*, Handle, int, unsigned long long))       \
  CALL(import_handle, cuMemImportFromShareableHandle, int(Handle*, void*, int))                        \
  CALL(reserve, cuMemAddressReserve, int(Pointer*, std::size_t, std::size_t, Pointer, unsigned long long)) \
  CALL(unreserve, cuMemAddressFree, int(Pointer, std::size_t))                                         \
  CALL(map, cuMemMap, int(Pointer, std::size_t, std::size_t, Handle, unsigned long long))              \
  CALL(unmap, cuMemUnmap, int(Pointer, std::size_t))                                                   \
  CALL(allow, cuMemSetAccess, int(Pointer, std::size_t, const Access*, std::size_t))
// clang-format on

struct Api {
  HMC_CUDA_DRIVER_CALLS(HMC_CALL_MEMBER)
  HMC_CUDA_DRIVER_OPTIONAL_CALLS(HMC_CALL_MEMBER)
};
struct ChunkApi {
  HMC_CUDA_CHUNK_CALLS(HMC_CALL_MEMBER)
  // Drivers before 11.x lack some of it.
  [[nodiscard]] bool complete() const noexcept {
    bool all = true;
#define HMC_HAVE(member, ...) all = all && member != nullptr;
    HMC_CUDA_CHUNK_CALLS(HMC_HAVE)
#undef HMC_HAVE
    return all;
  }
};

}  // namespace hmc::cuda_driver
