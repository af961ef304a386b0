// Simulated MUSA: the runtime (CUDA's under another prefix), and of the driver what a client of the runtime asks beside it.
#include <cstdint>
#include <cstring>
#include <utility>

#include "abi.h"
#include "copies.h"
#include "memory.h"
#include "streams.h"

namespace hmc::sim {

constinit const Profile profile = {"simulated MUSA runtime", "Simulated MUSA device", "musa", "MUSA_VISIBLE_DEVICES", 0xd0};

namespace {

constexpr int runtime_version = 40000;
constexpr bool knows_unregistered = true;

constexpr bool takes_ipc_flags(unsigned flags) { return flags <= 1; }

struct Attributes {  // cudaPointerAttributes
  int type;          // 0 unregistered, 1 host, 2 device, 3 managed
  int device;
  void* device_pointer;
  void* host_pointer;
};
static_assert(sizeof(Attributes) == 24);

void fill_attributes(Attributes& attributes, const void* pointer, const PointerView& view) {
  if (view.kind == PointerView::Kind::unknown) {
    attributes.device = -2;  // cudaInvalidDeviceId
    return;
  }
  const bool on_device = view.kind == PointerView::Kind::device;
  attributes.type = on_device ? 2 : 1;
  attributes.device = view.device;
  attributes.device_pointer = const_cast<void*>(pointer);
  attributes.host_pointer = on_device ? nullptr : const_cast<void*>(pointer);
}

constexpr CodeName names[] = {
    {0, "musaSuccess", "no error"},
    {1, "musaErrorInvalidValue", "invalid argument"},
    {2, "musaErrorMemoryAllocation", "out of memory"},
    {3, "musaErrorInitializationError", "initialization error"},
    {21, "musaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {100, "musaErrorNoDevice", "no MUSA-capable device is detected"},
    {101, "musaErrorInvalidDevice", "invalid device ordinal"},
    {201, "musaErrorDeviceUninitialized", "invalid device context"},
    {217, "musaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "musaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "musaErrorSymbolNotFound", "named symbol not found"},
    {600, "musaErrorNotReady", "device not ready"},
    {700, "musaErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "musaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {712, "musaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "musaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "musaErrorLaunchFailure", "unspecified launch failure"},
    {801, "musaErrorNotSupported", "operation not supported"},
    {999, "musaErrorUnknown", "unknown error"},
};

}  // namespace
}  // namespace hmc::sim

#define RT(name) musa##name
#include "runtime_abi.inc"

HMC_SIM_EXPORT int musaHostAlloc(void** pointer, std::size_t bytes, unsigned /*flags*/) {
  HMC_SIM_ENTER;
  return result(sim::allocate_host(bytes, current_device(), pointer));
}

HMC_SIM_EXPORT int musaMallocHost(void** pointer, std::size_t bytes) {
  HMC_SIM_ENTER;
  return result(sim::allocate_host(bytes, current_device(), pointer));
}

HMC_SIM_EXPORT int musaFreeHost(void* pointer) {
  HMC_SIM_ENTER;
  return pointer == nullptr ? 0 : result(sim::release_host(pointer));
}

// ---- the driver: no contexts, and names without versions ----

HMC_SIM_EXPORT int muInit(unsigned flags) {
  HMC_SIM_ENTER;
  if (flags != 0) return result(Error::invalid_value);
  return result(sim::device_count() == 0 ? Error::no_device : Error::ok);
}

HMC_SIM_EXPORT int muDeviceGet(int* device, int ordinal) {
  HMC_SIM_ENTER;
  if (device == nullptr) return result(Error::invalid_value);
  if (!sim::device_exists(ordinal)) return result(Error::invalid_device);
  *device = ordinal;
  return 0;
}

HMC_SIM_EXPORT int muDeviceGetName(char* name, int length, int device) {
  HMC_SIM_ENTER;
  if (!sim::device_exists(device)) return result(Error::invalid_device);
  return result(sim::copy_text(sim::profile.device_name, name, length));
}

HMC_SIM_EXPORT int muDeviceTotalMem(std::size_t* bytes, int device) {
  HMC_SIM_ENTER;
  if (bytes == nullptr) return result(Error::invalid_value);
  if (!sim::device_exists(device)) return result(Error::invalid_device);
  *bytes = sim::device_memory();
  return 0;
}

HMC_SIM_EXPORT int muMemGetAddressRange(std::uint64_t* base, std::size_t* bytes, std::uint64_t pointer) {
  HMC_SIM_ENTER;
  const sim::PointerView view = sim::look_up(reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)));
  if (view.kind != sim::PointerView::Kind::device) return result(Error::not_found);
  if (base != nullptr) *base = view.base;
  if (bytes != nullptr) *bytes = view.bytes;
  return 0;
}

HMC_SIM_EXPORT int muMemGetHandleForAddressRange(void* handle, std::uint64_t pointer, std::size_t bytes, int type,
                                                 std::uint64_t flags) {
  HMC_SIM_ENTER;
  const void* address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
  return result(type == 1 && flags == 0 ? sim::export_range(address, bytes, handle) : Error::invalid_value);
}
