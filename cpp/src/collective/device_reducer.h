// Reductions by the device that the memory belongs to, and the scratch memory for them.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "device/reduce.h"
#include "device/runtime.h"
#include "hmc/device.h"
#include "hmc/memory.h"
#include "progress/work_state.h"

namespace hmc {

// Whether the device reduces `sources` arrays of that type by itself. May load its kernel; no engine lock.
[[nodiscard]] bool device_reduces(const Device& device, DataType type, std::size_t sources);

// Engine lock held. As reduce_on_cpu() of `bytes` from each source, all of them memory that `device` reaches; it belongs to the
// call until the Work completes. It cannot be cancelled. `after`: comes first; may be null.
std::shared_ptr<WorkState> reduce_on_device(const std::shared_ptr<Engine>& engine, const Device& device, void* target,
                                            const std::vector<const void*>& sources, std::size_t bytes, const ReduceStep& step,
                                            const std::array<std::shared_ptr<StreamPoint>, 2>& after);

// Scratch memory on a device. Destruction gives it back for the next collective: a device allocates and frees slowly, and waits for
// all its work while it does. Any thread, any lock.
class DeviceScratch {
 public:
  // Errors: out_of_memory, device.
  static Result<std::unique_ptr<DeviceScratch>> take(const Device& device, std::size_t bytes);
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  [[nodiscard]] const Memory& memory() const noexcept { return memory_; }

 private:
  explicit DeviceScratch(Memory memory) noexcept : memory_(std::move(memory)) {}
  Memory memory_;
};

}  // namespace hmc
