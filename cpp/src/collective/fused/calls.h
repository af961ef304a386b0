// Calls: the fused calls of one group's local ranks, carried out in the order in which the ranks made them.
//
// Nothing of a call moves before every rank has announced the same one. So a rank that is in another collective is found. Where all
// ranks pass CPU memory it goes through shared memory. Where all pass device memory the devices carry it out, by a kernel over
// memory that they map or by their vendor's library. Else all use messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/pollable.h"
#include "collective/fused/call.h"
#include "collective/fused/segment.h"
#include "collective/mapped/devices.h"
#include "collective/native/ranks.h"
#include "progress/work_state.h"

namespace hmc {

class Group;

namespace fused {

// Owned by Group. All calls but use() with the engine lock held.
class Calls final : public Pollable {
 public:
  explicit Calls(Group& group) noexcept : group_(group), devices_(group), natives_(group) {}

  // Every rank is on this host and maps `segment`. Once, before the group's first collective. Engine lock not held.
  void use(std::shared_ptr<Segment> segment);
  [[nodiscard]] bool possible() const noexcept { return possible_.load(); }  // any thread; use() may be under way on another
  [[nodiscard]] mapped::Devices& devices() noexcept { return devices_; }
  [[nodiscard]] native::Ranks& natives() noexcept { return natives_; }  // also where the ranks share no memory

  // `rank` has started a collective that is not fused.
  void announce(std::uint32_t rank, std::uint64_t sequence, std::uint32_t call);
  // Starts a fused call, where those are possible. It takes its turn after the rank's earlier ones. `announced`: by at_once().
  std::shared_ptr<Call> post(std::uint32_t rank, std::uint64_t sequence, std::uint32_t call, Way way,
                             const CollectiveBuffers& buffers, bool announced);
  // Carries out a one-shot call at once, without a Call, if every other rank comes before a waiter would yield.
  enum class AtOnce : std::uint8_t { not_possible, done, announced };
  // `not_possible`: nothing was done. `announced`: the caller posts it. `sequence`: the group's next, taken unless it is not
  // possible. Errors: those of Group::next_sequence().
  Result<AtOnce> at_once(std::uint32_t rank, std::uint32_t call, const Way& way, const CollectiveBuffers& buffers,
                         std::uint64_t& sequence);
  // Wakes ranks that sleep until something changes here. After the change.
  void wake_others();
  // Tells the local ranks that wait where another rank is in another collective, should that not have been noticed yet.
  void compare();
  // No local rank takes part in collectives any more.
  void leave();

  bool poll() override;
  bool arm() override;
  void disarm() override;
  [[nodiscard]] bool busy() const override { return !waiting_.empty() || !given_.empty(); }

 private:
  friend class Call;
  enum class Agreement : std::uint8_t { reached, awaited, declined, broken };

  void announce(Call& call);
  struct Agreed {
    Agreement how = Agreement::awaited;
    std::uint32_t ways = 0;  // that all ranks are able to, once reached
  };
  // What the others have announced. Broken: another collective, which the call's rank has been told.
  Agreed agreement(const Call& call);
  bool advance(const std::shared_ptr<Call>& call);
  bool advance_passing(Call& call);
  [[nodiscard]] bool can_announce(const Call& call) noexcept;
  [[nodiscard]] bool can_advance(Call& call);
  void end(const std::shared_ptr<Call>& call, const Status& status);
  // The first rank that it needs and that has given up.
  [[nodiscard]] std::optional<std::uint32_t> abandoned_by(const Call& call) const noexcept;
  void give_up(std::uint32_t rank, std::uint64_t from);
  [[nodiscard]] const Slots& slots() const noexcept { return segment_->slots(); }
  // waiting_[index] may be announced: the device carries out the rank's earlier ones, if there are any.
  [[nodiscard]] bool is_next(std::size_t index) const noexcept;

  Group& group_;
  std::shared_ptr<Segment> segment_;       // null: none
  std::vector<std::uint64_t> next_chunk_;  // by rank; of local ones
  std::vector<OneShots> shots_;            // likewise
  std::vector<bool> reserved_;             // likewise
  std::vector<Status> stopped_devices_;    // likewise: why all that the rank's device runs was ended; ok: it was not
  // Under way, in the order of their ranks' calls. Those of a rank that a device has been given come before its other ones. They
  // change by themselves, so a look passes them by, however many they are.
  std::deque<std::shared_ptr<Call>> given_, waiting_;
  std::vector<std::size_t> on_device_;  // by rank: its calls in given_
  mapped::Devices devices_;
  native::Ranks natives_;
  bool armed_ = false;
  std::atomic<bool> possible_{false};  // there is a segment
};

}  // namespace fused
}  // namespace hmc
