// Simulated HIP, three libraries of one file: HMC_SIM_HIP is 5 (memory types as in ROCm 5), 6 (as in 6 and 7), or 52 (Hygon DTK:
// the shape and encoding of 5.2, without what that lacked).
#include <cstring>
#include <utility>

#include "abi.h"
#include "copies.h"
#include "memory.h"
#include "streams.h"

namespace hmc::sim {

#if HMC_SIM_HIP == 6
constinit const Profile profile = {"simulated ROCm runtime", "Simulated ROCm device", "rocm", "HIP_VISIBLE_DEVICES", 0xb0};
static constexpr int runtime_version = 60342131;
#elif HMC_SIM_HIP == 5
constinit const Profile profile = {"simulated ROCm 5 runtime", "Simulated ROCm 5 device", "rocm5", "HIP_VISIBLE_DEVICES", 0xb8};
static constexpr int runtime_version = 50731921;
#elif HMC_SIM_HIP == 52
constinit const Profile profile = {"simulated DTK runtime", "Simulated Hygon DCU device", "hygon", "HIP_VISIBLE_DEVICES", 0xc0};
static constexpr int runtime_version = 50221153;
#else
#error "HMC_SIM_HIP must be 5, 6 or 52"
#endif

namespace {

// Whether pointers that the runtime does not know have a type of their own (6 and 7) rather than an error (5).
constexpr bool knows_unregistered = HMC_SIM_HIP == 6;
constexpr int type_host = knows_unregistered ? 1 : 0;
constexpr int type_device = knows_unregistered ? 2 : 1;

// hipIpcMemLazyEnablePeerAccess, and from 5.2 on nothing else: 0 in the header of 5.2, 1 in those of 6 and 7.
constexpr bool takes_ipc_flags(unsigned flags) {
  return HMC_SIM_HIP == 52 ? flags == 0 : HMC_SIM_HIP == 6 ? flags == 1 : flags <= 1;
}

struct Attributes {  // hipPointerAttribute_t
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  int is_managed;
  unsigned allocation_flags;
};
static_assert(sizeof(Attributes) == 32 && offsetof(Attributes, host_pointer) == 16 && offsetof(Attributes, is_managed) == 24);

void fill_attributes(Attributes& attributes, const void* pointer, const PointerView& view) {
  if (view.kind == PointerView::Kind::unknown) {
    attributes.device = -2;  // hipInvalidDeviceId
    return;
  }
  const bool on_device = view.kind == PointerView::Kind::device;
  attributes.type = on_device ? type_device : type_host;
  attributes.device = view.device;
  attributes.device_pointer = const_cast<void*>(pointer);
  attributes.host_pointer = on_device ? nullptr : const_cast<void*>(pointer);
}

constexpr CodeName names[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {21, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {201, "hipErrorInvalidContext", "invalid device context"},
    {217, "hipErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "hipErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {999, "hipErrorUnknown", "unknown error"},
};

}  // namespace
}  // namespace hmc::sim

#define RT(name) hip##name
#include "runtime_abi.inc"

HMC_SIM_EXPORT int hipInit(unsigned flags) {
  HMC_SIM_ENTER;
  if (flags != 0) return result(Error::invalid_value);
  return result(sim::device_count() == 0 ? Error::no_device : Error::ok);
}

HMC_SIM_EXPORT int hipDeviceGetName(char* name, int length, int device) {
  HMC_SIM_ENTER;
  if (!sim::device_exists(device)) return result(Error::invalid_device);
  return result(sim::copy_text(sim::profile.device_name, name, length));
}

HMC_SIM_EXPORT int hipDeviceTotalMem(std::size_t* bytes, int device) {
  HMC_SIM_ENTER;
  if (bytes == nullptr) return result(Error::invalid_value);
  if (!sim::device_exists(device)) return result(Error::invalid_device);
  *bytes = sim::device_memory();
  return 0;
}

// All memory of simulated devices is as if uncached.
HMC_SIM_EXPORT int hipExtMallocWithFlags(void** pointer, std::size_t bytes, unsigned /*flags*/) {
  return hipMalloc(pointer, bytes);
}

HMC_SIM_EXPORT int hipHostMalloc(void** pointer, std::size_t bytes, unsigned /*flags*/) {
  HMC_SIM_ENTER;
  return result(sim::allocate_host(bytes, current_device(), pointer));
}

HMC_SIM_EXPORT int hipHostFree(void* pointer) {
  HMC_SIM_ENTER;
  return pointer == nullptr ? 0 : result(sim::release_host(pointer));
}

HMC_SIM_EXPORT int hipMemGetAddressRange(void** base, std::size_t* bytes, void* pointer) {
  HMC_SIM_ENTER;
  const sim::PointerView view = sim::look_up(pointer);
  if (view.kind != sim::PointerView::Kind::device) return result(Error::not_found);
  if (base != nullptr) *base = reinterpret_cast<void*>(view.base);
  if (bytes != nullptr) *bytes = view.bytes;
  return 0;
}

#if HMC_SIM_HIP == 6
HMC_SIM_EXPORT int hipMemGetHandleForAddressRange(void* handle, void* pointer, std::size_t bytes, int type,
                                                  unsigned long long flags) {
  HMC_SIM_ENTER;
  return result(type == 1 && flags == 0 ? sim::export_range(pointer, bytes, handle) : Error::invalid_value);
}

HMC_SIM_EXPORT int hipPointerSetAttribute(const void* value, int attribute, void* pointer) {
  HMC_SIM_ENTER;
  const bool known = sim::look_up(pointer).kind == sim::PointerView::Kind::device;
  return value != nullptr && attribute == 6 && known ? 0 : result(Error::invalid_value);
}
#endif
