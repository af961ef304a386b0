// A libamdhip64 for NVIDIA's cards: AMD's own HIP headers for that platform turn each HIP call into a CUDA one inline, and this
// exports the results under HIP's names, so that HMC's HIP backend meets real device memory. Built and used by
// tools/gpu_machine.sh only. HIP 5.2 with the CUDA 11 runtime; HMC reports it as "facade".
#define __HIP_PLATFORM_NVCC__
#define __HIP_PLATFORM_NVIDIA__
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>

#define HMC_EXPORT __attribute__((visibility("default"))) __attribute__((used))

// An inline function's own name is taken; the exported one is set by the assembler.
#define HMC_FACADE(result, name, parameters, arguments)                            \
  extern "C" HMC_EXPORT result facade_##name parameters { return name arguments; } \
  __asm__(".globl " #name "\n.set " #name ", facade_" #name "\n")

extern "C" HMC_EXPORT const char* hmcfacade_description() { return "AMD's HIP headers on the CUDA runtime"; }

HMC_FACADE(hipError_t, hipInit, (unsigned flags), (flags));
HMC_FACADE(hipError_t, hipGetLastError, (), ());
HMC_FACADE(const char*, hipGetErrorName, (hipError_t code), (code));
HMC_FACADE(hipError_t, hipGetDeviceCount, (int* count), (count));
HMC_FACADE(hipError_t, hipGetDevice, (int* device), (device));
HMC_FACADE(hipError_t, hipSetDevice, (int device), (device));
HMC_FACADE(hipError_t, hipDeviceGetName, (char* name, int length, hipDevice_t device), (name, length, device));
HMC_FACADE(hipError_t, hipDeviceTotalMem, (size_t* bytes, hipDevice_t device), (bytes, device));
HMC_FACADE(hipError_t, hipDeviceGetPCIBusId, (char* id, int length, hipDevice_t device), (id, length, device));
HMC_FACADE(hipError_t, hipDeviceCanAccessPeer, (int* can, int device, int peer), (can, device, peer));
HMC_FACADE(hipError_t, hipDeviceEnablePeerAccess, (int peer, unsigned flags), (peer, flags));
HMC_FACADE(hipError_t, hipMalloc, (void** data, size_t bytes), (data, bytes));
HMC_FACADE(hipError_t, hipFree, (void* data), (data));
HMC_FACADE(hipError_t, hipPointerGetAttributes, (hipPointerAttribute_t * attributes, const void* data), (attributes, data));
HMC_FACADE(hipError_t, hipHostRegister, (void* data, size_t bytes, unsigned flags), (data, bytes, flags));
HMC_FACADE(hipError_t, hipHostUnregister, (void* data), (data));
HMC_FACADE(hipError_t, hipIpcGetMemHandle, (hipIpcMemHandle_t * handle, void* data), (handle, data));
HMC_FACADE(hipError_t, hipIpcOpenMemHandle, (void** data, hipIpcMemHandle_t handle, unsigned flags), (data, handle, flags));
HMC_FACADE(hipError_t, hipIpcCloseMemHandle, (void* data), (data));
HMC_FACADE(hipError_t, hipStreamCreateWithFlags, (hipStream_t * stream, unsigned flags), (stream, flags));
HMC_FACADE(hipError_t, hipStreamQuery, (hipStream_t stream), (stream));
HMC_FACADE(hipError_t, hipStreamWaitEvent, (hipStream_t stream, hipEvent_t event, unsigned flags), (stream, event, flags));
HMC_FACADE(hipError_t, hipEventCreateWithFlags, (hipEvent_t * event, unsigned flags), (event, flags));
HMC_FACADE(hipError_t, hipEventRecord, (hipEvent_t event, hipStream_t stream), (event, stream));
HMC_FACADE(hipError_t, hipEventQuery, (hipEvent_t event), (event));
HMC_FACADE(hipError_t, hipMemcpyAsync, (void* target, const void* source, size_t bytes, hipMemcpyKind kind, hipStream_t stream),
           (target, source, bytes, kind, stream));
HMC_FACADE(hipError_t, hipMemsetAsync, (void* data, int value, size_t bytes, hipStream_t stream), (data, value, bytes, stream));

// HIP looks an address up wherever it belongs; the CUDA driver, which AMD's header calls, needs a context of its device.
extern "C" HMC_EXPORT hipError_t facade_hipMemGetAddressRange(hipDeviceptr_t* base, size_t* bytes, hipDeviceptr_t data) {
  cudaPointerAttributes owner{};
  int current = 0;
  cudaGetDevice(&current);
  if (cudaPointerGetAttributes(&owner, reinterpret_cast<void*>(data)) != cudaSuccess) return hipErrorInvalidValue;
  cudaSetDevice(owner.device);
  cudaFree(nullptr);  // makes the runtime's context current
  const hipError_t result = hipMemGetAddressRange(base, bytes, data);
  cudaSetDevice(current);
  return result;
}
__asm__(".globl hipMemGetAddressRange\n.set hipMemGetAddressRange, facade_hipMemGetAddressRange\n");

// The driver, which AMD's header calls for modules, takes the context that is current; the runtime makes it so at its own calls
// only.
extern "C" HMC_EXPORT hipError_t facade_hipModuleLoadData(hipModule_t* module, const void* image) {
  cudaFree(nullptr);
  return hipModuleLoadData(module, image);
}
__asm__(".globl hipModuleLoadData\n.set hipModuleLoadData, facade_hipModuleLoadData\n");
HMC_FACADE(hipError_t, hipModuleGetFunction, (hipFunction_t * function, hipModule_t module, const char* name),
           (function, module, name));
extern "C" HMC_EXPORT hipError_t facade_hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                                              unsigned shared_bytes, hipStream_t stream, void** arguments,
                                                              void** extra) {
  cudaFree(nullptr);
  return hipModuleLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments, extra);
}
__asm__(".globl hipModuleLaunchKernel\n.set hipModuleLaunchKernel, facade_hipModuleLaunchKernel\n");
HMC_FACADE(hipError_t, hipDeviceGetAttribute, (int* value, hipDeviceAttribute_t attribute, int device), (value, attribute, device));
HMC_FACADE(hipError_t, hipHostMalloc, (void** data, size_t bytes, unsigned flags), (data, bytes, flags));

// The run-time compiler: NVIDIA's behind AMD's names, in this library as ROCm had it until 6.
HMC_FACADE(hiprtcResult, hiprtcCreateProgram,
           (hiprtcProgram * program, const char* source, const char* name, int headers, const char** texts, const char** names),
           (program, source, name, headers, texts, names));
HMC_FACADE(hiprtcResult, hiprtcCompileProgram, (hiprtcProgram program, int options, const char** texts), (program, options, texts));
HMC_FACADE(hiprtcResult, hiprtcGetProgramLogSize, (hiprtcProgram program, size_t* bytes), (program, bytes));
HMC_FACADE(hiprtcResult, hiprtcGetProgramLog, (hiprtcProgram program, char* log), (program, log));
HMC_FACADE(hiprtcResult, hiprtcGetCodeSize, (hiprtcProgram program, size_t* bytes), (program, bytes));
HMC_FACADE(hiprtcResult, hiprtcGetCode, (hiprtcProgram program, char* code), (program, code));
HMC_FACADE(hiprtcResult, hiprtcDestroyProgram, (hiprtcProgram * program), (program));

// HIP has it, AMD's 5.2 headers for NVIDIA do not.
extern "C" HMC_EXPORT hipError_t hipLaunchHostFunc(hipStream_t stream, cudaHostFn_t function, void* data) {
  return hipCUDAErrorTohipError(cudaLaunchHostFunc(stream, function, data));
}
