// Simulated CUDA driver: virtual memory management.
#include <cstring>

#include "cuda_abi.h"
#include "memory.h"

using hmc::sim::cuda_code;
using hmc::sim::Error;
namespace sim = hmc::sim;

namespace {

using DevicePointer = std::uint64_t;  // CUdeviceptr
using Handle = std::uint64_t;         // CUmemGenericAllocationHandle

constexpr int posix_descriptor = 1;
constexpr int pinned_allocation = 1;
constexpr int on_device = 1;

struct Location {  // CUmemLocation
  int type;
  int id;
};
struct Properties {  // CUmemAllocationProp
  int type;
  int handle_types;
  Location location;
  void* win32;
  unsigned char flags[8];
};
struct Access {  // CUmemAccessDesc
  Location location;
  int flags;
};
static_assert(sizeof(Properties) == 32 && sizeof(Access) == 12);

void* at(DevicePointer pointer) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)); }

}  // namespace

HMC_SIM_EXPORT int cuMemGetAllocationGranularity(std::size_t* bytes, const Properties* properties, int /*option*/) {
  HMC_SIM_ENTER;
  if (bytes == nullptr || properties == nullptr) return cuda_code(Error::invalid_value);
  *bytes = sim::virtual_granularity;
  return 0;
}

HMC_SIM_EXPORT int cuMemCreate(Handle* handle, std::size_t bytes, const Properties* properties, std::uint64_t flags) {
  HMC_SIM_ENTER;
  if (properties == nullptr || flags != 0 || properties->type != pinned_allocation || properties->location.type != on_device) {
    return cuda_code(Error::invalid_value);
  }
  const bool shareable = (properties->handle_types & posix_descriptor) != 0;
  return cuda_code(sim::create_physical(properties->location.id, bytes, shareable, handle));
}

HMC_SIM_EXPORT int cuMemRelease(Handle handle) {
  HMC_SIM_ENTER;
  return cuda_code(sim::release_physical(handle));
}

HMC_SIM_EXPORT int cuMemRetainAllocationHandle(Handle* handle, void* address) {
  HMC_SIM_ENTER;
  return cuda_code(sim::retain_physical(address, handle));
}

HMC_SIM_EXPORT int cuMemGetAllocationPropertiesFromHandle(Properties* properties, Handle handle) {
  HMC_SIM_ENTER;
  sim::PhysicalView view;
  const Error error = sim::view_physical(handle, &view);
  if (properties == nullptr || error != Error::ok) return cuda_code(Error::invalid_value);
  *properties = {pinned_allocation, view.shareable ? posix_descriptor : 0, {on_device, view.device}, nullptr, {}};
  return 0;
}

HMC_SIM_EXPORT int cuMemAddressReserve(DevicePointer* pointer, std::size_t bytes, std::size_t /*alignment*/, DevicePointer /*wish*/,
                                       std::uint64_t flags) {
  HMC_SIM_ENTER;
  void* address = nullptr;
  if (pointer == nullptr || flags != 0) return cuda_code(Error::invalid_value);
  const int code = cuda_code(sim::reserve_range(bytes, &address));
  *pointer = reinterpret_cast<std::uintptr_t>(address);
  return code;
}

HMC_SIM_EXPORT int cuMemAddressFree(DevicePointer pointer, std::size_t bytes) {
  HMC_SIM_ENTER;
  return cuda_code(sim::free_range(at(pointer), bytes));
}

HMC_SIM_EXPORT int cuMemMap(DevicePointer pointer, std::size_t bytes, std::size_t offset, Handle handle, std::uint64_t flags) {
  HMC_SIM_ENTER;
  if (offset != 0 || flags != 0) return cuda_code(Error::invalid_value);
  return cuda_code(sim::map_physical(at(pointer), bytes, handle));
}

HMC_SIM_EXPORT int cuMemUnmap(DevicePointer pointer, std::size_t bytes) {
  HMC_SIM_ENTER;
  return cuda_code(sim::unmap_range(at(pointer), bytes));
}

HMC_SIM_EXPORT int cuMemSetAccess(DevicePointer pointer, std::size_t bytes, const Access* wanted, std::size_t count) {
  HMC_SIM_ENTER;
  if (wanted == nullptr || count == 0) return cuda_code(Error::invalid_value);
  for (std::size_t i = 0; i < count; ++i) {
    if (wanted[i].location.type != on_device) return cuda_code(Error::invalid_value);
    const Error error = sim::allow_access(at(pointer), bytes, wanted[i].location.id);
    if (error != Error::ok) return cuda_code(error);
  }
  return 0;
}

HMC_SIM_EXPORT int cuMemExportToShareableHandle(void* shareable, Handle handle, int type, std::uint64_t flags) {
  HMC_SIM_ENTER;
  if (shareable == nullptr || type != posix_descriptor || flags != 0) return cuda_code(Error::invalid_value);
  int fd = -1;
  const int code = cuda_code(sim::export_physical(handle, &fd));
  if (code == 0) std::memcpy(shareable, &fd, sizeof(fd));
  return code;
}

HMC_SIM_EXPORT int cuMemImportFromShareableHandle(Handle* handle, void* shareable, int type) {
  HMC_SIM_ENTER;
  if (type != posix_descriptor) return cuda_code(Error::invalid_value);
  return cuda_code(sim::import_physical(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)), handle));
}
