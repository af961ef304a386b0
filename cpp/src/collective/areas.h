// Areas: the memory that a Schedule's slices name, and what is done inside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "collective/device_reducer.h"
#include "collective/plan.h"
#include "collective/schedule_run.h"
#include "device/reduce.h"
#include "hmc/memory.h"
#include "progress/engine.h"

namespace hmc {

struct CollectiveBuffers {
  MemoryView in;
  MemoryView out;
  ReduceStep reduction = {};  // of reduce steps
  // What comes before: the streams of the two buffers, as they were when the call was started. Null: none.
  std::array<std::shared_ptr<StreamPoint>, 2> after = {};
  std::shared_ptr<DeviceScratch> scratch =
      nullptr;  // the schedule's, on the device that reduces; null: host memory, the CPU reduces
  // Not null: the call may do without scratch memory, which is taken when it does not. Where the device has none left, this is the
  // schedule.
  std::shared_ptr<const Schedule> staged = nullptr;
};

class Areas {
 public:
  // `scratch`: bytes, in host memory unless the buffers bring some.
  Areas(CollectiveBuffers buffers, std::uint64_t scratch);
  // Errors: out_of_memory: the scratch memory that was asked for last is not there.
  [[nodiscard]] Status has_memory() const;

  // Whether what comes before is not over: then `then` is called once it is. Engine lock held.
  [[nodiscard]] bool wait_for_streams(const std::shared_ptr<Engine>& engine, const std::function<void(const Status&)>& then);
  // Of buffers with `staged`: takes scratch memory for what `run` runs on the device, else has it run `staged`, with host memory.
  // What runs `staged` already takes host memory.
  void take_scratch(ScheduleRun& run);
  [[nodiscard]] const CollectiveBuffers& buffers() const noexcept { return buffers_; }
  [[nodiscard]] ReduceStep reduction(ReducePhase phase) const noexcept;
  // The device that reduces; the CPU where that does.
  [[nodiscard]] Device reducer() const noexcept { return buffers_.scratch ? buffers_.scratch->memory().device() : Device::cpu(); }
  [[nodiscard]] MemoryView slice(const Slice& where, std::uint64_t bytes) const;
  // Where the sources of a reduction begin.
  [[nodiscard]] std::vector<const void*> sources(std::span<const Slice> slices) const;
  // A step that neither posts a message nor takes longer than the engine lock may be held.
  [[nodiscard]] bool is_short(const Step& step) const noexcept;
  // Small: large blocks, and blocks to itself in device memory, go as messages. Relayed blocks of device memory are waited for.
  Status copy(const Step& step) const;
  // The buffers' owners may run user code when they end (a Python object), which the engine lock forbids: `engine` drops them.
  void release(Engine& engine) noexcept;

 private:
  void allocate(std::uint64_t bytes);

  CollectiveBuffers buffers_;
  std::unique_ptr<std::byte[]> scratch_;
  std::uint64_t lacking_ = 0;  // bytes that could not be allocated
};

}  // namespace hmc
