#include "collective/device_reducer.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "base/fork.h"
#include "collective/device_works.h"
#include "device/runtime.h"

namespace hmc {
namespace {

// Scratch memory that no collective uses now.
constexpr std::size_t most_kept = std::size_t{256} << 20;  // bytes of all devices together
constexpr std::size_t least_scratch = std::size_t{2} << 20;

struct Kept {
  std::mutex mutex;
  std::vector<Memory> idle;  // those given back last at the end
  std::size_t bytes = 0;
  std::uint32_t epoch = fork_epoch();
};
Kept& kept() {
  static Kept& instance = *new Kept;  // never destroyed: a vendor's library may end before it
  return instance;
}

}  // namespace

bool device_reduces(const Device& device, DataType type, std::size_t sources) {
  const auto runtime = runtime_for(device);
  return runtime.ok() && (*runtime)->compute().prepare_reduction(device.index(), type, sources).ok();
}

std::shared_ptr<WorkState> reduce_on_device(const std::shared_ptr<Engine>& engine, const Device& device, void* target,
                                            const std::vector<const void*>& sources, std::size_t bytes, const ReduceStep& step,
                                            const std::array<std::shared_ptr<StreamPoint>, 2>& after) {
  const auto runtime = runtime_for(device);
  if (!runtime.ok()) return completed_work(engine, runtime.status());
  const ReductionOp op{{target, bytes, device}, sources, step, {after[0].get(), after[1].get()}};
  return work_on_device(engine, **runtime, [&](Completion* done) { return (*runtime)->compute().reduce(op, done); });
}

Result<std::unique_ptr<DeviceScratch>> DeviceScratch::take(const Device& device, std::size_t bytes) {
  const std::size_t wanted = std::bit_ceil(std::max(bytes, least_scratch));
  Kept& all = kept();
  {
    const std::scoped_lock lock(all.mutex);
    const auto found = std::find_if(all.idle.rbegin(), all.idle.rend(), [&](const Memory& memory) {
      return memory.device() == device && memory.size() >= wanted && memory.size() / 4 <= wanted;
    });
    if (found != all.idle.rend() && all.epoch == fork_epoch()) {
      Memory memory = std::move(*found);
      all.idle.erase(std::next(found).base());
      all.bytes -= memory.size();
      return std::unique_ptr<DeviceScratch>(new DeviceScratch(std::move(memory)));
    }
  }
  HMC_ASSIGN(Memory memory, Memory::allocate(wanted, device));
  return std::unique_ptr<DeviceScratch>(new DeviceScratch(std::move(memory)));
}

DeviceScratch::~DeviceScratch() {
  Kept& all = kept();
  std::vector<Memory> freed;  // without the lock
  const std::scoped_lock lock(all.mutex);
  all.bytes += memory_.size();
  all.idle.push_back(std::move(memory_));
  while (all.bytes > most_kept) {
    all.bytes -= all.idle.front().size();
    freed.push_back(std::move(all.idle.front()));
    all.idle.erase(all.idle.begin());
  }
}

}  // namespace hmc
