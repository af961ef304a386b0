// BlockKernel: scattered blocks between memories that one device reaches, in one kernel launch. For runtimes that load and launch
// kernels as CUDA's driver does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "device/library.h"
#include "device/vendor_calls.h"

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

namespace hmc {
namespace kernel {

using Module = void*;
using Function = void*;
constexpr unsigned host_alloc_portable = 1;
constexpr unsigned event_disable_timing = 2;
constexpr int cuda_multiprocessor_count = 16;
constexpr int hip_multiprocessor_count = 63;

#define HMC_KERNEL_MEMBER(member, cuda, hip, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
struct Api {
  HMC_KERNEL_CALLS(HMC_KERNEL_MEMBER)
};
#undef HMC_KERNEL_MEMBER

// The kernel in the form that a device loads. Neither data nor pending: there is none.
struct Image {
  const void* data = nullptr;
  bool pending = false;  // being made; blocks go one by one until then
};

}  // namespace kernel

// The kernel is loaded into a device's context at first use. It reads the offsets from pinned host memory, which is written anew
// once the launches that read it are over. Any thread.
class BlockKernel {
 public:
  struct Vendor {
    int unsupported;                                 // its code
    int multiprocessor_count;                        // its device attribute
    std::function<kernel::Image(int device)> image;  // `device` is current
    std::function<int(int code)> clear;              // passes a code on, and takes back what the runtime has noted of the error
  };
  explicit BlockKernel(Vendor vendor) : vendor_(std::move(vendor)) {}

  void load_cuda(const VendorLibrary& library);
  void load_hip(const VendorLibrary& library);
  // False: the runtime cannot run kernels of ours; copy() is unsupported.
  [[nodiscard]] bool available() const noexcept;
  // On `device`, whose context is current; `issued` blocks are on their way when it returns. Codes of the vendor.
  int copy(int device, const VendorBlocks& blocks, VendorStream stream, std::size_t& issued);

 private:
  struct Kernel {
    bool tried = false;
    int code = 0;
    kernel::Function function = nullptr;
    std::size_t groups = 1;  // of threads that copy at a time
  };
  struct Chunk {
    std::uint64_t* offsets = nullptr;
    std::size_t used = 0;        // offsets
    VendorEvent over = nullptr;  // recorded when the chunk was left: all its launches came before
  };
  Kernel& kernel_of(int device);
  int launch(const Kernel& kernel, const VendorBlocks& blocks, VendorStream stream);
  int make_room(std::deque<Chunk>& chunks, std::size_t offsets, VendorStream stream);

  const Vendor vendor_;
  kernel::Api api_;
  std::mutex mutex_;  // of what follows
  std::map<int, Kernel> kernels_;
  std::map<VendorStream, std::deque<Chunk>> chunks_;  // the one in use last
};

}  // namespace hmc
