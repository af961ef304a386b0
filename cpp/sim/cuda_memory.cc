// Simulated CUDA driver: memory, pointer attributes, sharing between processes.
#include <cstring>

#include "copies.h"
#include "cuda_abi.h"
#include "memory.h"

using hmc::sim::copy_blocking;
using hmc::sim::cuda_code;
using hmc::sim::Error;
using hmc::sim::find_stream;
using hmc::sim::Side;
using hmc::sim::cuda::Context;
namespace sim = hmc::sim;

namespace {

using DevicePointer = std::uint64_t;  // CUdeviceptr

void* at(DevicePointer pointer) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)); }

template <class Value>
int put(void* target, Value value) {
  std::memcpy(target, &value, sizeof(value));
  return 0;
}

// One attribute of memory that is known here.
int pointer_attribute(void* data, int attribute, const sim::PointerView& view, DevicePointer pointer) {
  const bool on_device = view.kind == sim::PointerView::Kind::device;
  switch (attribute) {
    case 1:
      return put(data, sim::cuda::primary_context(view.device));
    case 2:
      return put(data, on_device ? 2U : 1U);  // memory type
    case 3:
      return put(data, pointer);  // device pointer
    case 4:
      return on_device ? cuda_code(Error::invalid_value) : put(data, pointer);
    case 6:
      return put(data, 0);  // synchronous memory operations
    case 7:
      return put(data, view.id);
    case 8:
      return put(data, static_cast<unsigned char>(0));  // managed
    case 9:
      return put(data, view.device);
    case 10:
      return put(data, static_cast<unsigned char>(view.exportable ? 1 : 0));  // has an IPC handle
    case 11:
      return put(data, static_cast<DevicePointer>(view.base));
    case 12:
      return put(data, view.bytes);
    case 13:
      return put(data, static_cast<unsigned char>(1));  // mapped
    case 14:
      return put(data, std::uint64_t{0});  // handle types
    case 15:
      return put(data, static_cast<unsigned char>(0));  // GPUDirect RDMA
    case 16:
      return put(data, 3U);  // accessible for reading and writing
    default:
      return cuda_code(Error::invalid_value);
  }
}

}  // namespace

HMC_SIM_EXPORT int cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  HMC_SIM_ENTER_CONTEXT;
  if (pointer == nullptr) return cuda_code(Error::invalid_value);
  void* address = nullptr;
  const int code = cuda_code(sim::allocate(context->device, bytes, &address));
  if (code == 0) *pointer = reinterpret_cast<std::uintptr_t>(address);
  return code;
}

HMC_SIM_EXPORT int cuMemFree_v2(DevicePointer pointer) {
  HMC_SIM_ENTER_CONTEXT;
  return pointer == 0 ? 0 : cuda_code(sim::release(at(pointer)));
}

// Of the device's pool, whose memory has no handle.
HMC_SIM_EXPORT int cuMemAllocAsync(DevicePointer* pointer, std::size_t bytes, void* /*stream*/) {
  HMC_SIM_ENTER_CONTEXT;
  if (pointer == nullptr) return cuda_code(Error::invalid_value);
  void* address = nullptr;
  const int code = cuda_code(sim::allocate(context->device, bytes, &address, false));
  if (code == 0) *pointer = reinterpret_cast<std::uintptr_t>(address);
  return code;
}

// Done at once: the device's work is waited for.
HMC_SIM_EXPORT int cuMemFreeAsync(DevicePointer pointer, void* /*stream*/) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::release(at(pointer)));
}

HMC_SIM_EXPORT int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::memory_info(context->device, free_bytes, total_bytes));
}

HMC_SIM_EXPORT int cuMemGetAddressRange_v2(DevicePointer* base, std::size_t* bytes, DevicePointer pointer) {
  HMC_SIM_ENTER_CONTEXT;
  const sim::PointerView view = sim::look_up(at(pointer));
  if (view.kind != sim::PointerView::Kind::device) return cuda_code(Error::not_found);
  if (base != nullptr) *base = view.base;
  if (bytes != nullptr) *bytes = view.bytes;
  return 0;
}

HMC_SIM_EXPORT int cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned /*flags*/) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::allocate_host(bytes, context->device, pointer));
}

HMC_SIM_EXPORT int cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::allocate_host(bytes, context->device, pointer));
}

HMC_SIM_EXPORT int cuMemFreeHost(void* pointer) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::release_host(pointer));
}

HMC_SIM_EXPORT int cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned /*flags*/) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::pin(pointer, bytes, context->device));
}

HMC_SIM_EXPORT int cuMemHostUnregister(void* pointer) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::unpin(pointer));
}

HMC_SIM_EXPORT int cuMemHostGetDevicePointer_v2(DevicePointer* device_pointer, void* pointer, unsigned flags) {
  HMC_SIM_ENTER_CONTEXT;
  if (device_pointer == nullptr || flags != 0) return cuda_code(Error::invalid_value);
  if (sim::look_up(pointer).kind != sim::PointerView::Kind::pinned) return cuda_code(Error::invalid_value);
  *device_pointer = reinterpret_cast<std::uintptr_t>(pointer);
  return 0;
}

HMC_SIM_EXPORT int cuMemcpy(DevicePointer target, DevicePointer source, std::size_t bytes) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(copy_blocking(at(target), at(source), bytes, Side::any, Side::any, find_stream(nullptr, context->device)));
}

HMC_SIM_EXPORT int cuMemcpyHtoD_v2(DevicePointer target, const void* source, std::size_t bytes) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(copy_blocking(at(target), source, bytes, Side::device, Side::host, find_stream(nullptr, context->device)));
}

HMC_SIM_EXPORT int cuMemcpyDtoH_v2(void* target, DevicePointer source, std::size_t bytes) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(copy_blocking(target, at(source), bytes, Side::host, Side::device, find_stream(nullptr, context->device)));
}

HMC_SIM_EXPORT int cuMemcpyAsync(DevicePointer target, DevicePointer source, std::size_t bytes, void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::copy(at(target), at(source), bytes, Side::any, Side::any, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuMemcpyHtoDAsync_v2(DevicePointer target, const void* source, std::size_t bytes, void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::copy(at(target), source, bytes, Side::device, Side::host, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuMemcpyDtoHAsync_v2(void* target, DevicePointer source, std::size_t bytes, void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::copy(target, at(source), bytes, Side::host, Side::device, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuMemcpyDtoDAsync_v2(DevicePointer target, DevicePointer source, std::size_t bytes, void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::copy(at(target), at(source), bytes, Side::device, Side::device, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuMemcpyPeerAsync(DevicePointer target, Context* /*target_context*/, DevicePointer source,
                                     Context* /*source_context*/, std::size_t bytes, void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::copy(at(target), at(source), bytes, Side::device, Side::device, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuMemsetD8_v2(DevicePointer target, unsigned char value, std::size_t bytes) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::fill_blocking(at(target), value, bytes, find_stream(nullptr, context->device)));
}

HMC_SIM_EXPORT int cuMemsetD8Async(DevicePointer target, unsigned char value, std::size_t bytes, void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::fill(at(target), value, bytes, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuPointerGetAttribute(void* data, int attribute, DevicePointer pointer) {
  HMC_SIM_ENTER;
  const sim::PointerView view = sim::look_up(at(pointer));
  if (data == nullptr || view.kind == sim::PointerView::Kind::unknown) return cuda_code(Error::invalid_value);
  return pointer_attribute(data, attribute, view, pointer);
}

// Unlike the single query, memory that is not known is no error: its attributes are zero, its device -2.
HMC_SIM_EXPORT int cuPointerGetAttributes(unsigned count, const int* attributes, void** data, DevicePointer pointer) {
  HMC_SIM_ENTER;
  if (count == 0 || attributes == nullptr || data == nullptr) return cuda_code(Error::invalid_value);
  const sim::PointerView view = sim::look_up(at(pointer));
  for (unsigned index = 0; index < count; ++index) {
    const int attribute = attributes[index];
    if (attribute < 1 || attribute > 16 || attribute == 5) return cuda_code(Error::invalid_value);
    const bool pointer_sized = attribute == 1 || attribute == 3 || attribute == 4 || attribute == 7 || attribute == 11 ||
                               attribute == 12 || attribute == 14;
    const bool one_byte = attribute == 8 || attribute == 10 || attribute == 13 || attribute == 15;
    std::memset(data[index], 0, pointer_sized ? 8 : one_byte ? 1 : 4);
    if (view.kind != sim::PointerView::Kind::unknown) {
      static_cast<void>(pointer_attribute(data[index], attribute, view, pointer));
    } else if (attribute == 9) {
      put(data[index], -2);
    }
  }
  return 0;
}

HMC_SIM_EXPORT int cuPointerSetAttribute(const void* value, int attribute, DevicePointer pointer) {
  HMC_SIM_ENTER;
  const bool known = sim::look_up(at(pointer)).kind == sim::PointerView::Kind::device;
  return value != nullptr && attribute == 6 && known ? 0 : cuda_code(Error::invalid_value);
}

HMC_SIM_EXPORT int cuIpcGetMemHandle(sim::Handle64* handle, DevicePointer pointer) {
  HMC_SIM_ENTER;
  return cuda_code(sim::export_handle64(at(pointer), handle));
}

HMC_SIM_EXPORT int cuIpcOpenMemHandle_v2(DevicePointer* pointer, sim::Handle64 handle, unsigned flags) {
  HMC_SIM_ENTER_CONTEXT;
  if (pointer == nullptr || flags > 1) return cuda_code(Error::invalid_value);
  void* address = nullptr;
  const int code = cuda_code(sim::open_handle64(handle, context->device, &address));
  if (code == 0) *pointer = reinterpret_cast<std::uintptr_t>(address);
  return code;
}

HMC_SIM_EXPORT int cuIpcCloseMemHandle(DevicePointer pointer) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::close_shared(at(pointer)));
}

HMC_SIM_EXPORT int cuMemGetHandleForAddressRange(void* handle, DevicePointer pointer, std::size_t bytes, int type,
                                                 std::uint64_t flags) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(type == 1 && flags == 0 ? sim::export_range(at(pointer), bytes, handle) : Error::invalid_value);
}
