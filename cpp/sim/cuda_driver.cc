// Simulated CUDA driver (libcuda.so.1): start, devices and contexts.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_abi.h"
#include "memory.h"

namespace hmc::sim {

constinit const Profile profile = {"simulated CUDA driver", "Simulated CUDA device", "cuda", "CUDA_VISIBLE_DEVICES", 0xa0};

namespace cuda {
namespace {

constexpr int driver_version = 12040;
std::atomic<bool> driver_initialized{false};
thread_local std::vector<Context*> thread_contexts;

struct Contexts {
  Contexts() {
    for (std::size_t device = 0; device < primary.size(); ++device) primary[device].device = static_cast<int>(device);
  }
  std::mutex mutex;
  std::array<Context, 8> primary;  // as many as devices.cc ever makes
};
Contexts& contexts() {
  static Contexts& instance = *new Contexts;
  return instance;
}

bool known_context(const Context* context) {
  const auto& all = contexts().primary;
  return std::any_of(all.begin(), all.end(), [context](const Context& one) { return &one == context; });
}

constexpr CodeName names[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const CodeName* find_name(int code) {
  const auto* found = std::find_if(std::begin(names), std::end(names), [code](const CodeName& one) { return one.code == code; });
  return found == std::end(names) ? nullptr : found;
}

}  // namespace

bool initialized() { return driver_initialized.load(); }

Context* primary_context(int device) { return &contexts().primary.at(static_cast<std::size_t>(device)); }

Context* current_context() { return thread_contexts.empty() ? nullptr : thread_contexts.back(); }

int require_context(Context** context) {
  *context = current_context();
  if (*context == nullptr) return cuda_no_context;
  const std::lock_guard lock(contexts().mutex);
  return (*context)->retained > 0 ? 0 : cuda_context_destroyed;
}

}  // namespace cuda
}  // namespace hmc::sim

using hmc::sim::cuda_code;
using hmc::sim::Error;
using hmc::sim::cuda::Context;
namespace sim = hmc::sim;

HMC_SIM_EXPORT int cuInit(unsigned flags) {
  if (const int code = sim::injected_error(__func__); code != 0) return code;
  if (flags != 0) return cuda_code(Error::invalid_value);
  if (sim::device_count() == 0) return cuda_code(Error::no_device);
  sim::cuda::driver_initialized.store(true);
  return 0;
}

HMC_SIM_EXPORT int cuDriverGetVersion(int* version) {
  if (const int code = sim::injected_error(__func__); code != 0) return code;
  if (version == nullptr) return cuda_code(Error::invalid_value);
  *version = sim::cuda::driver_version;
  return 0;
}

HMC_SIM_EXPORT int cuDeviceGetCount(int* count) {
  HMC_SIM_ENTER;
  if (count == nullptr) return cuda_code(Error::invalid_value);
  *count = sim::device_count();
  return 0;
}

HMC_SIM_EXPORT int cuDeviceGet(int* device, int ordinal) {
  HMC_SIM_ENTER;
  if (device == nullptr) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(ordinal)) return cuda_code(Error::invalid_device);
  *device = ordinal;
  return 0;
}

HMC_SIM_EXPORT int cuDeviceGetName(char* name, int length, int device) {
  HMC_SIM_ENTER;
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  return cuda_code(sim::copy_text(sim::profile.device_name, name, length));
}

HMC_SIM_EXPORT int cuDeviceGetPCIBusId(char* address, int length, int device) {
  HMC_SIM_ENTER;
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  return cuda_code(sim::copy_text(sim::device_pci_address(device), address, length));
}

HMC_SIM_EXPORT int cuDeviceGetUuid_v2(char* uuid, int device) {
  HMC_SIM_ENTER;
  if (uuid == nullptr) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  std::memset(uuid, 0, 16);
  std::memcpy(uuid, "hmcsim-", 7);
  uuid[15] = static_cast<char>(sim::device_pci_bus(device));
  return 0;
}

HMC_SIM_EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  HMC_SIM_ENTER;
  if (bytes == nullptr) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  *bytes = sim::device_memory();
  return 0;
}

HMC_SIM_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  HMC_SIM_ENTER;
  if (value == nullptr || attribute < 1 || attribute > 199) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  switch (attribute) {
    case 16:
      *value = 1;
      break;  // multiprocessors
    case 102:
    case 124:
      *value = 1;
      break;  // virtual memory management, dma-buf
    case 19:
      *value = 1;
      break;  // can map host memory
    case 33:
      *value = static_cast<int>(sim::device_pci_bus(device));
      break;
    case 40:
      *value = 2;
      break;  // copy engines
    case 41:
      *value = 1;
      break;  // unified addressing
    case 75:
      *value = 9;
      break;  // compute capability, major
    case 122:
      *value = 1;
      break;  // 64-bit stream memory operations
    case 123:
      *value = 1;
      break;  // wait for a value: not all bits
    default:
      *value = 0;
      break;  // GPUDirect RDMA (116) among them
  }
  return 0;
}

HMC_SIM_EXPORT int cuDevicePrimaryCtxRetain(Context** context, int device) {
  HMC_SIM_ENTER;
  if (context == nullptr) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  const std::lock_guard lock(sim::cuda::contexts().mutex);
  *context = sim::cuda::primary_context(device);
  ++(*context)->retained;
  return 0;
}

// The last release ends the context, and with it the device's memory.
HMC_SIM_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  HMC_SIM_ENTER;
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  {
    const std::lock_guard lock(sim::cuda::contexts().mutex);
    Context* context = sim::cuda::primary_context(device);
    if (context->retained == 0) return sim::cuda_no_context;
    if (--context->retained > 0) return 0;
  }
  sim::release_all(device);
  return 0;
}

HMC_SIM_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  HMC_SIM_ENTER;
  if (flags == nullptr || active == nullptr) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  const std::lock_guard lock(sim::cuda::contexts().mutex);
  *flags = 0;
  *active = sim::cuda::primary_context(device)->retained > 0 ? 1 : 0;
  return 0;
}

HMC_SIM_EXPORT int cuCtxSetCurrent(Context* context) {
  HMC_SIM_ENTER;
  if (context != nullptr && !sim::cuda::known_context(context)) return sim::cuda_no_context;
  if (!sim::cuda::thread_contexts.empty()) sim::cuda::thread_contexts.pop_back();
  if (context != nullptr) sim::cuda::thread_contexts.push_back(context);
  return 0;
}

HMC_SIM_EXPORT int cuCtxGetCurrent(Context** context) {
  HMC_SIM_ENTER;
  if (context == nullptr) return cuda_code(Error::invalid_value);
  *context = sim::cuda::current_context();
  return 0;
}

HMC_SIM_EXPORT int cuCtxPushCurrent_v2(Context* context) {
  HMC_SIM_ENTER;
  if (!sim::cuda::known_context(context)) return sim::cuda_no_context;
  sim::cuda::thread_contexts.push_back(context);
  return 0;
}

HMC_SIM_EXPORT int cuCtxPopCurrent_v2(Context** context) {
  HMC_SIM_ENTER;
  if (sim::cuda::thread_contexts.empty()) return sim::cuda_no_context;
  if (context != nullptr) *context = sim::cuda::current_context();
  sim::cuda::thread_contexts.pop_back();
  return 0;
}

HMC_SIM_EXPORT int cuCtxGetDevice(int* device) {
  HMC_SIM_ENTER_CONTEXT;
  if (device == nullptr) return cuda_code(Error::invalid_value);
  *device = context->device;
  return 0;
}

HMC_SIM_EXPORT int cuCtxSynchronize() {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::synchronize_device(context->device));
}

HMC_SIM_EXPORT int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  HMC_SIM_ENTER;
  if (can == nullptr) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device) || !sim::device_exists(peer)) return cuda_code(Error::invalid_device);
  *can = sim::can_access_peer(device, peer) ? 1 : 0;
  return 0;
}

// A simulated card has peer access (attribute 2) and no NVLink, whose sign is atomics across (3).
HMC_SIM_EXPORT int cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
  HMC_SIM_ENTER;
  if (value == nullptr || device == peer) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device) || !sim::device_exists(peer)) return cuda_code(Error::invalid_device);
  if (attribute < 1 || attribute > 4) return cuda_code(Error::invalid_value);
  *value = attribute == 2 && sim::can_access_peer(device, peer) ? 1 : 0;
  return 0;
}

HMC_SIM_EXPORT int cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
  HMC_SIM_ENTER_CONTEXT;
  if (flags != 0) return cuda_code(Error::invalid_value);
  if (!sim::cuda::known_context(peer)) return sim::cuda_no_context;
  return cuda_code(sim::enable_peer_access(context->device, peer->device));
}

HMC_SIM_EXPORT int cuGetErrorName(int code, const char** name) {
  if (name == nullptr) return cuda_code(Error::invalid_value);
  const sim::CodeName* found = sim::cuda::find_name(code);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? cuda_code(Error::invalid_value) : 0;
}

HMC_SIM_EXPORT int cuGetErrorString(int code, const char** text) {
  if (text == nullptr) return cuda_code(Error::invalid_value);
  const sim::CodeName* found = sim::cuda::find_name(code);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? cuda_code(Error::invalid_value) : 0;
}

// Looks among this library's own names, the newest version of each first, as the driver does.
HMC_SIM_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int /*version*/, std::uint64_t /*flags*/, int* status) {
  if (name == nullptr || function == nullptr) return cuda_code(Error::invalid_value);
  static void* const self = [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&cuInit), &info) != 0 ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  }();
  *function = self == nullptr ? nullptr : dlsym(self, (std::string(name) + "_v2").c_str());
  if (*function == nullptr && self != nullptr) *function = dlsym(self, name);
  if (status != nullptr) *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? cuda_code(Error::not_found) : 0;
}
