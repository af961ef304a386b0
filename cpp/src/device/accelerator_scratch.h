// AcceleratorScratch: memory through which the tables of a kernel's call pass to a device, and its sums back.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "device/accelerator_devices.h"

namespace hmc {

// Later calls use it again. Any thread.
class AcceleratorScratch {
 public:
  // Of equal sizes on both sides.
  struct Piece {
    int index = 0;
    std::size_t bytes = 0;
    std::byte* host = nullptr;
    void* device = nullptr;
    bool is_pinned = false;  // the host's side; else copies are slower
  };
  explicit AcceleratorScratch(AcceleratorDevices& devices) noexcept : devices_(devices) {}

  // A piece of at least so many bytes. Device `index` is current. Errors: out_of_memory, device.
  Result<Piece> take(int index, std::size_t bytes);
  // Nothing that was queued uses the piece any more.
  void give(const Piece& piece);

 private:
  AcceleratorDevices& devices_;
  std::mutex mutex_;  // of what follows
  std::vector<Piece> spare_;
};

}  // namespace hmc
