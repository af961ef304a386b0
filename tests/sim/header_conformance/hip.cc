// cpp/src/device/cuda_like_api.h against AMD's hip_runtime_api.h. Only compiled, by tests/sim/test_header_conformance.py.
#include "device/block_kernel.h"
#include "device/cuda_like_api.h"
#include "device/kernel_compiler.h"

#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1  // no overloads beside the C functions
#include <hip/hip_runtime_api.h>
#if __has_include(<hip/hiprtc.h>)  // not everywhere beside the former
#include <hip/hiprtc.h>
#endif

#include <cstddef>

#include "same_abi.h"

namespace conformance {

template <>
inline constexpr bool same_layout<hmc::IpcHandle, hipIpcMemHandle_t> =
    sizeof(hmc::IpcHandle) == sizeof(hipIpcMemHandle_t) && std::is_trivially_copyable_v<hipIpcMemHandle_t>;

using Ours = hmc::cuda_like::Attributes;
using Theirs = hipPointerAttribute_t;
#if HIP_VERSION_MAJOR < 6
#define HMC_TYPE memoryType
#else
#define HMC_TYPE type
#endif
template <>
inline constexpr bool same_layout<Ours, Theirs> =
    sizeof(Ours) >= sizeof(Theirs) && offsetof(Ours, type) == offsetof(Theirs, HMC_TYPE) &&
    sizeof(Ours::type) == sizeof(Theirs::HMC_TYPE) && offsetof(Ours, device) == offsetof(Theirs, device) &&
    sizeof(Ours::device) == sizeof(Theirs::device) && offsetof(Ours, device_pointer) == offsetof(Theirs, devicePointer);

}  // namespace conformance

namespace hmc::cuda_like {

#define HMC_CHECK(member, name, ...) static_assert(conformance::same_abi<__VA_ARGS__, decltype(::hip##name)>(), "hip" #name);
HMC_CUDA_LIKE_CALLS(HMC_CHECK)
HMC_CUDA_LIKE_OPTIONAL_CALLS(HMC_CHECK)
HMC_CUDA_LIKE_DRIVER_CALLS(HMC_CHECK)
#if HIP_VERSION_MAJOR >= 7
HMC_CUDA_LIKE_NEWER_CALLS(HMC_CHECK)
static_assert(range_dma_buf == hipMemRangeHandleTypeDmaBufFd);
#endif

static_assert(codes.not_ready[0] == hipErrorNotReady);
static_assert(codes.not_ready[1] == hipErrorNotReady);
static_assert(codes.out_of_memory == hipErrorOutOfMemory);
static_assert(codes.unsupported == hipErrorNotSupported);
static_assert(codes.no_device == hipErrorNoDevice);
static_assert(codes.invalid_handle == hipErrorInvalidHandle);
static_assert(codes.already_pinned == hipErrorHostMemoryAlreadyRegistered);
static_assert(peer_access_already_enabled == hipErrorPeerAccessAlreadyEnabled);
static_assert(stream_non_blocking == hipStreamNonBlocking);
static_assert(event_disable_timing == hipEventDisableTiming);
static_assert(host_register_portable == hipHostRegisterPortable);
static_assert(ipc_lazy_peer_access[HIP_VERSION_MAJOR < 6 ? 1 : 0] == hipIpcMemLazyEnablePeerAccess);
static_assert(invalid_value == hipErrorInvalidValue);
static_assert(kind_to_device == hipMemcpyHostToDevice);
static_assert(kind_to_host == hipMemcpyDeviceToHost);
static_assert(kind_on_device == hipMemcpyDeviceToDevice);

}  // namespace hmc::cuda_like

namespace hmc::kernel {

#define HMC_CHECK_KERNEL(member, cuda, hip, ...) static_assert(conformance::same_abi<__VA_ARGS__, decltype(::hip)>(), #hip);
HMC_KERNEL_CALLS(HMC_CHECK_KERNEL)
static_assert(host_alloc_portable == hipHostMallocPortable);
static_assert(event_disable_timing == hipEventDisableTiming);
static_assert(hip_multiprocessor_count == hipDeviceAttributeMultiprocessorCount);

}  // namespace hmc::kernel

// Later versions may add const, which is no matter to callers.
#if __has_include(<hip/hiprtc.h>) && HIP_VERSION_MAJOR < 6
namespace hmc::compiler {

#define HMC_CHECK_COMPILER(member, name, ...) static_assert(conformance::same_abi<__VA_ARGS__, decltype(::name)>(), #name);
HMC_COMPILER_CALLS(HMC_CHECK_COMPILER)

}  // namespace hmc::compiler
#endif
