#include "hmc/work.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "device/runtime.h"
#include "hmc/interrupt.h"
#include "progress/engine.h"
#include "progress/work_state.h"

namespace hmc {
namespace {

Status no_work() { return {Code::invalid_argument, "this Work is empty: it names no operation"}; }

template <class Function>
auto locked(Engine& engine, const Function& function) {
  const auto lock = engine.lock();
  return function();
}

}  // namespace

Work::Work(std::shared_ptr<WorkState> state) noexcept : state_(std::move(state)) {}

bool Work::done() const noexcept { return state_ && state_->done(); }

Status Work::wait(Deadline deadline) const { return state_ ? state_->wait(deadline) : no_work(); }

Status Work::status() const {
  if (!state_) return no_work();
  return state_->done() ? state_->status() : Status(Code::would_block, "the operation is still under way");
}

MessageInfo Work::info() const { return done() ? state_->info() : MessageInfo(); }

void Work::then(std::function<void(const Status&)> callback) const {
  if (state_ && callback) state_->then(std::move(callback));
}

Status Work::join(const Device& device, StreamHandle stream) const {
  if (!state_) return no_work();
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  if (done()) return {};
  const std::shared_ptr<Engine>& engine = state_->engine();
  if (engine->forked()) return forked_status();
  std::shared_ptr<DeviceOrder> order;
  std::chrono::microseconds patience{0};
  bool ordered = false, owners = false;
  // False: it is not known yet who carries the operation out. If a device does, the stream waits for that.
  const auto order_if_settled = [&] {
    if (order->settled().load(std::memory_order_acquire) == 0) return false;
    ordered = order->order(device, stream);
    owners = ordered && engine->posting().leave_to_tick();
    return true;
  };
  const bool settled = locked(*engine, [&] {
    order = state_->device_order();
    if (!order || order_if_settled()) return true;
    patience = order->patience();
    return false;
  });
  if (!settled) {
    static_cast<void>(engine->drive_flag(Deadline::after(patience), order->settled()));
    locked(*engine, order_if_settled);
  }
  if (owners) {
    if (auto* const caller = Interruptible::current()) caller->before_waiting();  // their ends may wait for other threads
    engine->drop_retired();
  }
  if (ordered) return {};
  const auto gate = std::make_shared<StreamGate>();
  HMC_TRY(runtime->streams().hold(device.index(), stream, gate));
  // No callback: those run one after the other, and one of them may wait for this very stream.
  locked(*engine, [&] { state_->on_complete_locked([gate](const Status&) { gate->open(); }); });
  return {};
}

Status Work::cancel() const { return state_ ? state_->cancel() : no_work(); }

Status Work::withdraw() const { return state_ ? state_->withdraw() : no_work(); }

Result<std::size_t> wait_any(std::span<const Work> works, Deadline deadline) {
  if (works.empty()) return Status(Code::invalid_argument, "wait_any needs at least one Work");
  for (const Work& work : works) {
    if (!work.valid()) return no_work();
    if (work.state()->engine() != works.front().state()->engine()) {
      return Status(Code::invalid_argument, "wait_any: the Works belong to different Contexts; wait for each Context's apart");
    }
  }
  std::size_t index = works.size();
  const auto find_done = [&] {
    for (std::size_t i = 0; i < works.size(); ++i) {
      if (works[i].done()) {
        index = i;
        return true;
      }
    }
    return false;
  };
  if (find_done()) return index;
  Engine& engine = *works.front().state()->engine();
  if (engine.forked()) return forked_status();
  if (engine.drive(deadline, find_done)) return index;
  return Status(Code::timeout, "the deadline passed before any of " + std::to_string(works.size()) +
                                   " operations completed; all are still under way");
}

Status wait_all(std::span<const Work> works, Deadline deadline) {
  for (const Work& work : works) {
    if (!work.valid()) return no_work();
  }
  // Driving for one moves all of its Context. From the last on: the others have mostly ended before it, and need no look.
  for (std::size_t i = works.size(); i-- > 0;) {
    WorkState& state = *works[i].state();
    if (state.done()) continue;
    if (state.engine()->forked()) return forked_status();
    if (Status waited = state.wait(deadline); !state.done()) return waited;
  }
  for (const Work& work : works) {
    if (Status status = work.status(); !status.ok()) return status;
  }
  return {};
}

}  // namespace hmc
