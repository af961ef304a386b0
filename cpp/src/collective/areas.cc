#include "collective/areas.h"

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "collective/stream_watch.h"
#include "device/runtime.h"

namespace hmc {
namespace {

// Bytes of all sources together that are reduced with the engine lock held: about as long as a post that copies its message, and
// less than a thread takes to wake up.
constexpr std::uint64_t reduced_at_once = 512 << 10, exactly_reduced_at_once = reduced_at_once / 8;

}  // namespace

Areas::Areas(CollectiveBuffers buffers, std::uint64_t scratch) : buffers_(std::move(buffers)) {
  if (scratch > 0 && !buffers_.scratch && !buffers_.staged) allocate(scratch);
}

// On the engine's thread nothing catches std::bad_alloc.
void Areas::allocate(std::uint64_t bytes) {
  scratch_.reset(new (std::nothrow) std::byte[bytes]);
  if (!scratch_) lacking_ = bytes;
}

Status Areas::has_memory() const {
  if (lacking_ == 0) return {};
  return {Code::out_of_memory, "no memory for the " + std::to_string(lacking_) + " bytes in which parts are put together"};
}

bool Areas::wait_for_streams(const std::shared_ptr<Engine>& engine, const std::function<void(const Status&)>& then) {
  if (!buffers_.after[0] && !buffers_.after[1]) return false;
  auto points = std::exchange(buffers_.after, {});  // nothing waits for them twice
  const auto reached = all_reached(points);
  if (reached.ok() && *reached) return false;
  std::make_shared<StreamWatch>(engine, std::move(points), then)->start();
  return true;
}

void Areas::take_scratch(ScheduleRun& run) {
  const auto staged = std::exchange(buffers_.staged, nullptr);
  if (run.schedule() != staged) {
    if (auto taken = DeviceScratch::take(buffers_.in.device, run.schedule()->scratch); taken.ok()) {
      buffers_.scratch = std::move(taken).value();
      return;
    }
  }
  allocate(staged->scratch);
  run = ScheduleRun(staged);
  run.begin();
}

MemoryView Areas::slice(const Slice& where, std::uint64_t bytes) const {
  if (where.area == Area::scratch && !buffers_.scratch) return {scratch_.get() + where.offset, bytes};
  MemoryView view = where.area == Area::scratch ? MemoryView(buffers_.scratch->memory())
                    : where.area == Area::in    ? buffers_.in
                                                : buffers_.out;
  view.data = static_cast<std::byte*>(view.data) + where.offset;
  view.bytes = bytes;
  return view;
}

ReduceStep Areas::reduction(ReducePhase phase) const noexcept {
  ReduceStep step = buffers_.reduction;
  if (phase == ReducePhase::first) step.divisor = 1;
  if (phase == ReducePhase::last) step.scale = 1;
  return step;
}

std::vector<const void*> Areas::sources(std::span<const Slice> slices) const {
  std::vector<const void*> found;
  found.reserve(slices.size());
  for (const Slice& where : slices) found.push_back(slice(where, 0).data);
  return found;
}

bool Areas::is_short(const Step& step) const noexcept {
  switch (step.kind) {
    case StepKind::copy:
      return buffers_.in.device.is_cpu() && buffers_.out.device.is_cpu();
    case StepKind::reduce:
      return !buffers_.scratch &&
             step.bytes * step.source_count <= (buffers_.reduction.exact ? exactly_reduced_at_once : reduced_at_once);
    default:
      return false;
  }
}

Status Areas::copy(const Step& step) const {
  if (step.bytes == 0) return {};
  const MemoryView to = slice(step.to, step.bytes), from = slice(step.from, step.bytes);
  if (to.data == from.data) return {};  // in place
  if (!to.device.is_cpu() || !from.device.is_cpu())
    return copy_blocking({to.data, to.bytes, to.device}, {from.data, from.bytes, from.device});
  std::memcpy(to.data, from.data, step.bytes);
  return {};
}

void Areas::release(Engine& engine) noexcept {
  if (buffers_.in.owner) engine.retire(std::move(buffers_.in.owner));
  if (buffers_.out.owner) engine.retire(std::move(buffers_.out.owner));
  if (buffers_.scratch) engine.retire(std::move(buffers_.scratch));
}

}  // namespace hmc
