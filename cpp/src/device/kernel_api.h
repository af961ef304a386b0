// Loading and launching kernels, for runtimes that do so as CUDA's driver does.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <type_traits>
#include <utility>

#include "device/library.h"
#include "device/vendor_calls.h"
#include "hmc/reduce.h"

// Rows CALL(member, name in CUDA's driver, name in HIP, type).
// clang-format off
#define HMC_KERNEL_CALLS(CALL)                                                                                         \
  CALL(load_module, cuModuleLoadData, hipModuleLoadData, int(Module*, const void*))                                    \
  CALL(get_function, cuModuleGetFunction, hipModuleGetFunction, int(Function*, Module, const char*))                   \
  CALL(launch, cuLaunchKernel, hipModuleLaunchKernel, int(Function, unsigned, unsigned, unsigned, unsigned, unsigned,  \
                                                          unsigned, unsigned, VendorStream, void**, void**))           \
  CALL(attribute, cuDeviceGetAttribute, hipDeviceGetAttribute, int(int*, int, int))                                    \
  CALL(allocate_host, cuMemHostAlloc, hipHostMalloc, int(void**, std::size_t, unsigned))                               \
  CALL(event_create, cuEventCreate, hipEventCreateWithFlags, int(VendorEvent*, unsigned))                              \
  CALL(event_record, cuEventRecord, hipEventRecord, int(VendorEvent, VendorStream))                                    \
  CALL(event_query, cuEventQuery, hipEventQuery, int(VendorEvent))
// clang-format on

namespace hmc::kernel {

using Module = void*;
using Function = void*;
constexpr unsigned host_alloc_portable = 1;
constexpr unsigned event_disable_timing = 2;
constexpr int cuda_multiprocessor_count = 16;
constexpr int hip_multiprocessor_count = 63;

#define HMC_KERNEL_MEMBER(member, cuda, hip, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
struct Api {
  HMC_KERNEL_CALLS(HMC_KERNEL_MEMBER)

  void load_cuda(const VendorLibrary& library);
  void load_hip(const VendorLibrary& library);
  // False: the runtime cannot run kernels of ours.
  [[nodiscard]] bool complete() const noexcept;
};
#undef HMC_KERNEL_MEMBER

// The kernel in the form that a device loads. Neither data nor pending: there is none.
struct Image {
  const void* data = nullptr;
  bool pending = false;  // being made
};

struct Vendor {
  int unsupported;  // its codes
  int out_of_memory;
  int multiprocessor_count;            // its device attribute
  std::function<int(int code)> clear;  // passes a code on, and takes back what the runtime has noted of the error
};

// A kernel in the context of one device.
struct Loaded {
  bool tried = false;  // what follows will not change
  int code = 0;        // the vendor's; its unsupported: there is no such kernel, or not yet
  Function function = nullptr;
  std::size_t processors = 1;  // of the device
  // Earlier it is not tried again, after the device had no memory for it.
  std::chrono::steady_clock::time_point retry_at{};

  // Loads `name` from the image, unless it has been tried. The device is current.
  void load(const Api& api, const Vendor& vendor, const std::function<Image(int device)>& image, int device, const char* name);
};

// One kernel for each device and element type, loaded at first use. Any thread: loading one holds up no other, because launches
// look kernels up with the engine lock held. What has been tried never changes, and is found without a lock.
class TypedKernels {
 public:
  // `load(kernel)` loads it, unless that has been tried.
  template <class Load>
  Loaded find(int device, DataType type, const Load& load) {
    Entry& entry = entry_of(device, type);
    if (entry.settled.load(std::memory_order_acquire)) return entry.kernel;
    const std::scoped_lock lock(entry.mutex);
    load(entry.kernel);
    entry.settled.store(entry.kernel.tried, std::memory_order_release);
    return entry.kernel;
  }
  // It need not be loaded any more.
  [[nodiscard]] bool found(int device, DataType type);

 private:
  struct Entry {
    std::atomic<bool> settled{false};  // the kernel has been tried, and is constant
    std::mutex mutex;
    Loaded kernel;
  };
  struct Row {
    explicit Row(int index) noexcept : device(index) {}
    const int device;
    std::array<Entry, data_types> entries;
    Row* next = nullptr;  // constant once the row is in the list
  };
  Entry& entry_of(int device, DataType type);

  std::mutex mutex_;        // of new rows
  std::deque<Row> stored_;  // they stay where they are
  std::atomic<Row*> rows_{nullptr};
};

}  // namespace hmc::kernel
