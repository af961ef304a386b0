// CudaBlocks: scattered blocks between memories that one NVIDIA device reaches, in one kernel launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

#include "device/cuda_driver_api.h"
#include "device/library.h"
#include "device/vendor_calls.h"

namespace hmc {

// The kernel is loaded into a device's context at first use. It reads the offsets from pinned host memory, which is written anew
// once the launches that read it are over. Any thread.
class CudaBlocks {
 public:
  void load(const VendorLibrary& library);
  // False: the driver cannot run kernels of ours; copy() is unsupported.
  [[nodiscard]] bool available() const noexcept {
    return api_.load_module != nullptr && api_.get_function != nullptr && api_.launch != nullptr && api_.attribute != nullptr &&
           api_.allocate_host != nullptr && api_.event_create != nullptr && api_.event_record != nullptr &&
           api_.event_query != nullptr;
  }
  // On `device`, whose context is current; `issued` blocks are on their way when it returns. Codes of the driver.
  int copy(int device, const VendorBlocks& blocks, VendorStream stream, std::size_t& issued);

 private:
  struct Kernel {
    bool tried = false;
    int code = 0;
    cuda_driver::Function function = nullptr;
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

  cuda_driver::KernelApi api_;
  std::mutex mutex_;  // of what follows
  std::map<int, Kernel> kernels_;
  std::map<VendorStream, std::deque<Chunk>> chunks_;  // the one in use last
};

}  // namespace hmc
