// BlockKernel: scattered blocks between memories that one device reaches, in one kernel launch. For runtimes that load and launch
// kernels as CUDA's driver does.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "device/kernel_api.h"
#include "device/vendor_calls.h"

namespace hmc {

// The kernel is loaded into a device's context at first use. It reads the offsets from pinned host memory, which is written anew
// once the launches that read it are over. Any thread.
class BlockKernel {
 public:
  // `image(device)`: called with the device current.
  BlockKernel(const kernel::Api& api, kernel::Vendor vendor, std::function<kernel::Image(int device)> image)
      : api_(api), vendor_(std::move(vendor)), image_(std::move(image)) {}

  // False: the runtime cannot run kernels of ours; copy() is unsupported.
  [[nodiscard]] bool available() const noexcept { return api_.complete(); }
  // Loads it on `device`, whose context is current. Codes of the vendor; its unsupported: there is none, or not yet.
  int prepare(int device);
  // prepare() would load nothing.
  [[nodiscard]] bool prepared(int device);
  // On `device`, whose context is current; `issued` blocks are on their way when it returns. Codes of the vendor.
  int copy(int device, const VendorBlocks& blocks, VendorStream stream, std::size_t& issued);

 private:
  struct Kernel {
    kernel::Loaded loaded;
    std::array<std::size_t, 3> groups{};  // of threads that copy at a time, by BlockWay
  };
  struct Entry {
    std::mutex mutex;  // held while the kernel is loaded, which takes long: of this device alone
    Kernel kernel;
    std::atomic<bool> tried{false};
  };
  struct Chunk {
    std::uint64_t* offsets = nullptr;
    std::size_t used = 0;        // offsets
    VendorEvent over = nullptr;  // recorded when the chunk was left: all its launches came before
  };
  Entry& entry_of(int device);
  Kernel kernel_of(int device);
  int launch(const Kernel& kernel, const VendorBlocks& blocks, VendorStream stream);
  int make_room(std::deque<Chunk>& chunks, std::size_t offsets, VendorStream stream);

  const kernel::Api& api_;
  const kernel::Vendor vendor_;
  const std::function<kernel::Image(int device)> image_;
  std::mutex mutex_;                                  // of what follows
  std::map<int, Entry> kernels_;                      // entries stay where they are
  std::map<VendorStream, std::deque<Chunk>> chunks_;  // the one in use last
};

}  // namespace hmc
