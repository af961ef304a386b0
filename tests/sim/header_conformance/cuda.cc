// cpp/src/device/cuda_driver_api.h against NVIDIA's cuda.h. Only compiled, by tests/sim/test_header_conformance.py.
#include "device/block_kernel.h"
#include "device/cuda_driver_api.h"

#include <cuda.h>

#include <cstddef>

#include "same_abi.h"

namespace conformance {

template <>
inline constexpr bool same_layout<hmc::IpcHandle, CUipcMemHandle> =
    sizeof(hmc::IpcHandle) == sizeof(CUipcMemHandle) && std::is_trivially_copyable_v<CUipcMemHandle>;

using Ours = hmc::cuda_driver::Access;
template <>
inline constexpr bool same_layout<Ours, CUmemAccessDesc> =
    sizeof(Ours) == sizeof(CUmemAccessDesc) && offsetof(Ours, location_type) == offsetof(CUmemAccessDesc, location.type) &&
    offsetof(Ours, location) == offsetof(CUmemAccessDesc, location.id) && offsetof(Ours, flags) == offsetof(CUmemAccessDesc, flags);

}  // namespace conformance

namespace hmc::cuda_driver {

#define HMC_CHECK(member, name, ...) static_assert(conformance::same_abi<__VA_ARGS__, decltype(::name)>(), #name);
HMC_CUDA_DRIVER_CALLS(HMC_CHECK)
HMC_CUDA_DRIVER_OPTIONAL_CALLS(HMC_CHECK)
HMC_CUDA_CHUNK_CALLS(HMC_CHECK)

static_assert(codes.not_ready[0] == CUDA_ERROR_NOT_READY);
static_assert(codes.not_ready[1] == CUDA_ERROR_NOT_READY);
static_assert(codes.out_of_memory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(codes.unsupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(codes.no_device == CUDA_ERROR_NO_DEVICE);
static_assert(codes.invalid_handle == CUDA_ERROR_INVALID_HANDLE);
static_assert(codes.already_pinned == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(invalid_value == CUDA_ERROR_INVALID_VALUE);
static_assert(peer_access_already_enabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(stream_non_blocking == CU_STREAM_NON_BLOCKING);
static_assert(event_disable_timing == CU_EVENT_DISABLE_TIMING);
static_assert(host_register_portable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(host_register_read_only == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(ipc_lazy_peer_access == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(memory_type_device == CU_MEMORYTYPE_DEVICE);
static_assert(attribute_memory_type == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(attribute_buffer_id == CU_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(attribute_device_ordinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(attribute_range_start == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
static_assert(attribute_range_size == CU_POINTER_ATTRIBUTE_RANGE_SIZE);
static_assert(device_compute_capability_major == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(p2p_access_supported == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
static_assert(device_dma_buf_supported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(range_dma_buf == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
static_assert(posix_descriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(location_device == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(access_read_write == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(p2p_native_atomics == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);

}  // namespace hmc::cuda_driver

namespace hmc::kernel {

#define HMC_CHECK_KERNEL(member, cuda, hip, ...) static_assert(conformance::same_abi<__VA_ARGS__, decltype(::cuda)>(), #cuda);
HMC_KERNEL_CALLS(HMC_CHECK_KERNEL)
static_assert(host_alloc_portable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(event_disable_timing == CU_EVENT_DISABLE_TIMING);
static_assert(cuda_multiprocessor_count == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);

}  // namespace hmc::kernel
