// CudaBlocks: scattered blocks between memories that one NVIDIA device reaches, in one kernel launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "device/cuda_driver_api.h"
#include "device/library.h"
#include "device/vendor_calls.h"

namespace hmc {

// The kernel is loaded into a device's context at first use. The offsets travel on the stream, into scratch memory of that stream,
// so that one launch may follow another. Any thread.
class CudaBlocks {
 public:
  void load(const VendorLibrary& library);
  // False: the driver cannot run kernels of ours; copy() is unsupported.
  [[nodiscard]] bool available() const noexcept {
    return api_.load_module != nullptr && api_.get_function != nullptr && api_.launch != nullptr && api_.attribute != nullptr;
  }
  // On `device`, whose context is current. Codes of the driver.
  int copy(int device, const VendorBlocks& blocks, VendorStream stream);

 private:
  struct Kernel {
    bool tried = false;
    int code = 0;
    cuda_driver::Function function = nullptr;
    int processors = 1;
  };
  struct Scratch {
    cuda_driver::Pointer data = 0;
    std::size_t bytes = 0;
  };
  Kernel& kernel_of(int device);
  int make_room(Scratch& scratch, std::size_t bytes);

  cuda_driver::KernelApi api_;
  std::mutex mutex_;  // of what follows
  std::map<int, Kernel> kernels_;
  std::map<VendorStream, Scratch> scratch_;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace hmc
