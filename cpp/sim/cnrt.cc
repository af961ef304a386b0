// Simulated CNRT (Cambricon): queues and notifiers, copy directions and codes of its own, handles of 8 bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "copies.h"
#include "memory.h"
#include "streams.h"

namespace hmc::sim {

constinit const Profile profile = {"simulated CNRT", "Simulated MLU device", "mlu", "MLU_VISIBLE_DEVICES", 0xe0};

}  // namespace hmc::sim

using hmc::sim::current_device;
using hmc::sim::Error;
using hmc::sim::find_stream;
using hmc::sim::Side;
using hmc::sim::StreamRef;
namespace sim = hmc::sim;

#define HMC_SIM_ENTER \
  if (const int code_ = sim::injected_error(__func__); code_ != 0) return code_

namespace {

constexpr int no_device = 100004;
constexpr int invalid = 100006;
constexpr int unsupported = 100050;
constexpr int no_memory = 100100;
constexpr int not_ready = 632014;

int result(Error error) {
  switch (error) {
    case Error::ok:
      return 0;
    case Error::out_of_memory:
      return no_memory;
    case Error::no_device:
    case Error::invalid_device:
      return no_device;
    case Error::not_ready:
      return not_ready;
    default:
      return invalid;
  }
}

constexpr sim::CodeName names[] = {
    {0, "cnrtSuccess", "no error"},
    {no_device, "cnrtErrorNoDevice", "no device, or none of that number"},
    {invalid, "cnrtErrorArgsInvalid", "invalid argument"},
    {unsupported, "cnrtErrorNotSupport", "operation not supported"},
    {no_memory, "cnrtErrorNoMem", "out of memory"},
    {not_ready, "cnrtErrorNotReady", "asynchronous operations are not finished"},
};

const sim::CodeName& name_of(int code) {
  for (const sim::CodeName& one : names) {
    if (one.code == code) return one;
  }
  static constexpr sim::CodeName unknown = {0, "cnrtErrorUnknown", "unknown error"};
  return unknown;
}

// 0 host to device, 1 device to device, 2 device to host, 3 host to host, 4 device to a peer, 5 by the pointers.
bool sides_of(int direction, Side* target, Side* source) {
  if (direction < 0 || direction > 5) return false;
  *target = direction == 5 ? Side::any : direction == 2 || direction == 3 ? Side::host : Side::device;
  *source = direction == 5 ? Side::any : direction == 0 || direction == 3 ? Side::host : Side::device;
  return true;
}

int copy_async(void* target, const void* source, std::size_t bytes, void* queue, int direction) {
  Side to = Side::any;
  Side from = Side::any;
  if (!sides_of(direction, &to, &from)) return invalid;
  return result(sim::copy(target, source, bytes, to, from, find_stream(queue, current_device())));
}

struct Attributes {  // cnrtPointerAttributes_t
  int type;          // 0 unregistered, 1 host, 2 device
  int device;
  std::size_t bytes;
  void* device_pointer;
  void* host_pointer;
  int cache_mode;
  void* device_base;
};
static_assert(sizeof(Attributes) == 48);

}  // namespace

HMC_SIM_EXPORT int cnrtGetDeviceCount(unsigned* count) {
  HMC_SIM_ENTER;
  if (count == nullptr) return invalid;
  *count = static_cast<unsigned>(sim::device_count());
  return *count == 0 ? no_device : 0;
}

HMC_SIM_EXPORT int cnrtSetDevice(int device) {
  HMC_SIM_ENTER;
  return result(sim::set_current_device(device));
}

HMC_SIM_EXPORT int cnrtGetDevice(int* device) {
  HMC_SIM_ENTER;
  if (device == nullptr) return invalid;
  *device = current_device();
  return 0;
}

HMC_SIM_EXPORT int cnrtDeviceGetPCIBusId(char* address, int length, int device) {
  HMC_SIM_ENTER;
  if (!sim::device_exists(device)) return no_device;
  return result(sim::copy_text(sim::device_pci_address(device), address, length));
}

// Of the properties only the name, 256 bytes at the front, which all versions of the structure have.
HMC_SIM_EXPORT int cnrtGetDeviceProperties_V3(char* properties, int device) {
  HMC_SIM_ENTER;
  if (properties == nullptr) return invalid;
  if (!sim::device_exists(device)) return no_device;
  std::memset(properties, 0, 256);
  return result(sim::copy_text(sim::profile.device_name, properties, 256));
}

HMC_SIM_EXPORT int cnrtMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  HMC_SIM_ENTER;
  return result(sim::memory_info(current_device(), free_bytes, total_bytes));
}

HMC_SIM_EXPORT const char* cnrtGetErrorName(int code) { return name_of(code).name; }
HMC_SIM_EXPORT const char* cnrtGetErrorStr(int code) { return name_of(code).text; }

HMC_SIM_EXPORT int cnrtMalloc(void** pointer, std::size_t bytes) {
  HMC_SIM_ENTER;
  return result(sim::allocate(current_device(), bytes, pointer));
}

HMC_SIM_EXPORT int cnrtFree(void* pointer) {
  HMC_SIM_ENTER;
  return result(sim::release(pointer));
}

HMC_SIM_EXPORT int cnrtHostMalloc(void** pointer, std::size_t bytes) {
  HMC_SIM_ENTER;
  return result(sim::allocate_host(bytes, current_device(), pointer));
}

HMC_SIM_EXPORT int cnrtFreeHost(void* pointer) {
  HMC_SIM_ENTER;
  return result(sim::release_host(pointer));
}

HMC_SIM_EXPORT int cnrtMemcpy(void* target, void* source, std::size_t bytes, int direction) {
  HMC_SIM_ENTER;
  Side to = Side::any;
  Side from = Side::any;
  if (!sides_of(direction, &to, &from)) return invalid;
  return result(sim::copy_blocking(target, source, bytes, to, from, find_stream(nullptr, current_device())));
}

HMC_SIM_EXPORT int cnrtMemcpyAsync_V3(void* target, void* source, std::size_t bytes, void* queue, int direction) {
  HMC_SIM_ENTER;
  return copy_async(target, source, bytes, queue, direction);
}

HMC_SIM_EXPORT int cnrtMemcpyAsync_V2(void* target, void* source, std::size_t bytes, void* queue, int direction) {
  HMC_SIM_ENTER;
  return copy_async(target, source, bytes, queue, direction);
}

HMC_SIM_EXPORT int cnrtMemcpyPeerAsync(void* target, int target_device, void* source, int source_device, std::size_t bytes,
                                       void* queue) {
  HMC_SIM_ENTER;
  if (!sim::device_exists(target_device) || !sim::device_exists(source_device)) return no_device;
  return copy_async(target, source, bytes, queue, 4);
}

HMC_SIM_EXPORT int cnrtMemset(void* target, int value, std::size_t bytes) {
  HMC_SIM_ENTER;
  return result(sim::fill_blocking(target, value, bytes, find_stream(nullptr, current_device())));
}

HMC_SIM_EXPORT int cnrtMemsetAsync(void* target, int value, std::size_t bytes, void* queue) {
  HMC_SIM_ENTER;
  return result(sim::fill(target, value, bytes, find_stream(queue, current_device())));
}

HMC_SIM_EXPORT int cnrtQueueCreate(void** queue) {
  HMC_SIM_ENTER;
  return result(sim::create_stream(current_device(), false, queue));
}

HMC_SIM_EXPORT int cnrtQueueDestroy(void* queue) {
  HMC_SIM_ENTER;
  return result(sim::destroy_stream(queue));
}

HMC_SIM_EXPORT int cnrtQueueSync(void* queue) {
  HMC_SIM_ENTER;
  const StreamRef found = find_stream(queue, current_device());
  return result(found ? sim::fence(found).wait() : Error::invalid_handle);
}

HMC_SIM_EXPORT int cnrtQueueQuery(void* queue) {
  HMC_SIM_ENTER;
  const StreamRef found = find_stream(queue, current_device());
  return result(found ? sim::mark(found).query() : Error::invalid_handle);
}

HMC_SIM_EXPORT int cnrtQueueWaitNotifier(void* notifier, void* queue, unsigned /*flags*/) {
  HMC_SIM_ENTER;
  const StreamRef found = find_stream(queue, current_device());
  return result(found ? sim::wait_event(found, notifier) : Error::invalid_handle);
}

HMC_SIM_EXPORT int cnrtInvokeHostFunc(void* queue, void (*function)(void*), void* argument) {
  HMC_SIM_ENTER;
  return result(sim::call_host(function, argument, find_stream(queue, current_device())));
}

HMC_SIM_EXPORT int cnrtNotifierCreateWithFlags(void** notifier, unsigned /*flags*/) {
  HMC_SIM_ENTER;
  return result(sim::create_event(current_device(), notifier));
}

HMC_SIM_EXPORT int cnrtNotifierDestroy(void* notifier) {
  HMC_SIM_ENTER;
  return result(sim::destroy_event(notifier));
}

HMC_SIM_EXPORT int cnrtPlaceNotifier(void* notifier, void* queue) {
  HMC_SIM_ENTER;
  const StreamRef found = find_stream(queue, current_device());
  return result(found ? sim::record_event(notifier, found) : Error::invalid_handle);
}

HMC_SIM_EXPORT int cnrtQueryNotifier(void* notifier) {
  HMC_SIM_ENTER;
  return result(sim::query_event(notifier));
}

HMC_SIM_EXPORT int cnrtWaitNotifier(void* notifier) {
  HMC_SIM_ENTER;
  return result(sim::synchronize_event(notifier));
}

HMC_SIM_EXPORT int cnrtPointerGetAttributes(Attributes* attributes, const void* pointer) {
  HMC_SIM_ENTER;
  if (attributes == nullptr || pointer == nullptr) return invalid;
  *attributes = {};
  const sim::PointerView view = sim::look_up(pointer);
  if (view.kind == sim::PointerView::Kind::unknown) return 0;
  const bool on_device = view.kind == sim::PointerView::Kind::device;
  attributes->type = on_device ? 2 : 1;
  attributes->device = view.device;
  attributes->bytes = view.bytes;
  attributes->device_pointer = const_cast<void*>(pointer);
  attributes->host_pointer = on_device ? nullptr : const_cast<void*>(pointer);
  attributes->device_base = reinterpret_cast<void*>(view.base);
  return 0;
}

HMC_SIM_EXPORT int cnrtAcquireMemHandle(std::uint64_t* handle, void* pointer) {
  HMC_SIM_ENTER;
  return result(sim::export_handle8(pointer, handle));
}

HMC_SIM_EXPORT int cnrtMapMemHandle(void** pointer, std::uint64_t handle, int /*flag*/) {
  HMC_SIM_ENTER;
  return result(sim::open_handle8(handle, current_device(), pointer));
}

HMC_SIM_EXPORT int cnrtUnMapMemHandle(void* pointer) {
  HMC_SIM_ENTER;
  return result(sim::close_shared(pointer));
}

// Of the driver, which the runtime brings along.
HMC_SIM_EXPORT int cnMemGetHandleForAddressRange(void* handle, std::uint64_t pointer, std::size_t bytes, int type,
                                                 std::uint64_t flags) {
  HMC_SIM_ENTER;
  const void* address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
  return result(type == 1 && flags == 0 ? sim::export_range(address, bytes, handle) : Error::invalid_value);
}
