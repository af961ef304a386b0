#include "hmc/row_copies.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "device/runtime.h"

namespace hmc {
namespace {

// A kernel takes microseconds, unless something on the device keeps it waiting: only then does the thread sleep between two looks.
constexpr auto busy = std::chrono::microseconds(200);
constexpr auto pause = std::chrono::microseconds(100);

template <class Pointer>
std::vector<std::uint64_t> offsets(std::span<const RowCopy> rows, Pointer RowCopy::* end, Pointer first) {
  std::vector<std::uint64_t> found(rows.size());
  std::ranges::transform(rows, found.begin(), [&](const RowCopy& row) { return static_cast<std::uint64_t>(row.*end - first); });
  return found;
}

}  // namespace

// Holds itself while the runtime has it.
class RowCopies::State final : public Completion {
 public:
  State(DeviceRuntime& runtime, std::shared_ptr<const void> keep) noexcept : runtime_(runtime), keep_(std::move(keep)) {}

  static Status start(const std::shared_ptr<State>& state, std::span<const RowCopy> rows, std::size_t row_bytes, const Device& by) {
    std::byte* const to = std::ranges::min_element(rows, {}, &RowCopy::to)->to;
    const std::byte* const from = std::ranges::min_element(rows, {}, &RowCopy::from)->from;
    state->targets_ = offsets(rows, &RowCopy::to, to);
    state->sources_ = offsets(rows, &RowCopy::from, from);
    const CopyOp op{.target = {to, row_bytes, by},
                    .source = {const_cast<std::byte*>(from), row_bytes, by},
                    .source_offsets = state->sources_.data(),
                    .target_offsets = state->targets_.data(),
                    .blocks = rows.size(),
                    .block_bytes = row_bytes};
    state->self_ = state;  // kept for ever after an exception: something may have been started
    Status started = state->runtime_.copy(op, state.get());
    if (!started.ok()) state->self_.reset();
    return started;
  }

  void complete(Status status) noexcept override {
    const std::shared_ptr<State> self = std::move(self_);
    status_ = std::move(status);
    done_.store(true, std::memory_order_release);
  }

  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] const Status& status() const noexcept { return status_; }  // once done
  [[nodiscard]] bool forked() const noexcept { return fork_epoch() != epoch_; }
  bool poll() { return runtime_.poll(); }

 private:
  DeviceRuntime& runtime_;
  const std::uint32_t epoch_ = fork_epoch();
  const std::shared_ptr<const void> keep_;
  std::vector<std::uint64_t> targets_, sources_;
  std::shared_ptr<State> self_;
  Status status_;
  std::atomic<bool> done_{false};
};

Result<RowCopies> RowCopies::start(std::span<const RowCopy> rows, std::size_t row_bytes, const Device& by,
                                   std::shared_ptr<const void> keep) {
  RowCopies copies;
  if (rows.empty() || row_bytes == 0) return copies;
  if (by.is_cpu()) {
    for (const RowCopy& row : rows) std::memcpy(row.to, row.from, row_bytes);
    return copies;
  }
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(by));
  install_fork_handler();
  copies.state_ = std::make_shared<State>(*runtime, std::move(keep));
  HMC_TRY(State::start(copies.state_, rows, row_bytes, by));
  return copies;
}

Status RowCopies::wait(Deadline deadline) const {
  if (state_ == nullptr) return {};
  const auto began = Deadline::Clock::now();
  while (!state_->done()) {
    if (state_->forked()) return forked_status();
    const bool moved = state_->poll();
    if (deadline.passed() && !state_->done()) return {Code::timeout, "rows are still being copied on the device"};
    if (moved) continue;
    if (Deadline::Clock::now() - began < busy) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(pause);
    }
  }
  return state_->status();
}

}  // namespace hmc
