// Call: one rank's share in a fused call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "collective/fused/announcements.h"
#include "collective/fused/one_shot.h"
#include "collective/fused/passing.h"
#include "progress/work_state.h"

namespace hmc::fused {

class Calls;

// Ends with ok; unsupported: nothing was done, and every rank is to use messages; closed: another
// rank gave up, and the collective's reason is on its way; cancelled.
class Call final : public WorkState, public DeviceOrder {
 public:
  // `own`: what the rank announces.
  Call(Calls& calls, std::uint32_t rank, const Announced& own, Way way, const CollectiveBuffers& buffers);

  [[nodiscard]] const std::atomic<std::uint32_t>& settled() const noexcept override { return settled_; }
  // The ranks' devices may carry it out.
  [[nodiscard]] bool may_be_on_device() const noexcept { return way_.on_device != nullptr; }
  // They, or the vendor's library: a thread of this process launches it once all ranks have announced it.
  [[nodiscard]] bool may_be_launched() const noexcept { return way_.on_device != nullptr || way_.by_library.has_value(); }

  // ---- engine lock held ----
  [[nodiscard]] std::chrono::microseconds patience() const override;
  bool order(const Device& device, StreamHandle stream) override;
  Status cancel_locked() override;  // at once: nothing of it is written afterwards
  // Whether it cannot end without `rank`.
  [[nodiscard]] bool needs(std::uint32_t rank) const noexcept;
  // Whether it is `rank` whose doing is missing now.
  [[nodiscard]] bool awaits(std::uint32_t rank) const noexcept;

 private:
  friend class Calls;
  // What every rank has announced, in chunks.
  void begin_passing();
  // What every rank has announced for its device, by `ways` that all are able to. True if anything moved.
  bool advance_on_device(std::uint32_t ways);
  // Whether advance_on_device() would.
  [[nodiscard]] bool can_advance_on_device(std::uint32_t ways) const noexcept;
  // The vendor's library carries it out rather than a kernel over mapped memory.
  bool advance_by_library();
  void begin_on_device(std::shared_ptr<WorkState> work);
  void device_ended(const Status& status);
  // It waits for earlier calls of its rank, the first of which all ranks' devices have been given.
  [[nodiscard]] bool is_queued() const noexcept;
  [[nodiscard]] std::atomic<std::uint64_t>& ended_on_device(Board& board) const noexcept;
  // What its device does ends soon, and the call with that status.
  void end_on_device(const Status& status);

  Calls& calls_;
  const std::uint32_t rank_;
  const Announced own_;
  const Way way_;
  const CollectiveBuffers buffers_;  // without owners and scratch memory, which CollectiveWork keeps
  bool announced_ = false;
  std::unique_ptr<Passing> passing_;        // once every rank has announced the call, unless it is a one-shot call
  std::shared_ptr<WorkState> device_work_;  // likewise, where the ranks' devices carry it out
  std::atomic<std::uint32_t> settled_{0};   // how it is carried out
  bool on_device_ = false;                  // they do, or get ready to
  bool by_library_ = false;                 // the vendor's library does, or is to
  Status outcome_;                          // of a call that has failed while the device carries it out
};

}  // namespace hmc::fused
