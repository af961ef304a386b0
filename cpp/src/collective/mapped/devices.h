// Devices: the devices of a group's local ranks, as far as their kernels carry out its collectives through memory that all map.
//
// A rank's first call with device memory opens its segment and offers it on the rank's Board. When all ranks have offered theirs,
// each maps the others', and says whether it could. If one could not, or has no such device, the group never uses mapped memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collective/areas.h"
#include "collective/device_works.h"
#include "collective/fused/slots.h"
#include "device/runtime.h"
#include "hmc/reduce.h"
#include "progress/work_state.h"

namespace hmc {

class Group;

namespace mapped {

enum class Standing : std::uint32_t { none, offered, maps_all, refused };

class Devices {
 public:
  explicit Devices(Group& group) noexcept : group_(group) {}

  // Once, before the group's first collective. Engine lock not held.
  void use(const fused::Slots& slots);
  // Whether a call may take mapped memory at all, as far as that is known: some do, or none has tried. Any thread.
  [[nodiscard]] bool possible() const noexcept { return usable_.load(std::memory_order_relaxed); }
  // Whether it may be asked for by name: alike on every rank. Any thread.
  [[nodiscard]] bool may_be_named() const noexcept { return nameable_; }
  // Whether `rank` takes part in such a call with its device, which it makes ready for elements of that type. Engine lock not held.
  bool prepare(std::uint32_t rank, const Device& device, DataType type);

  // Whether that device, of a rank for which prepare() said yes, reduces the inputs of all ranks itself, for a call that goes by
  // messages after all. As device_reduces().
  bool reduces(std::uint32_t rank, DataType type);

  // ---- engine lock held ----
  // Whether all ranks map all segments, now that each has announced such a call. Maps those of the others for `rank`, once.
  enum class Mapping : std::uint8_t { done, awaited, refused };
  Mapping map(std::uint32_t rank);
  // The ranks may map each other's segments in the next call of `rank`, the first one of such memory as far as is known.
  [[nodiscard]] bool may_map_next(std::uint32_t rank) const noexcept {
    return possible() && !locals_[rank].mapped && !locals_[rank].declined;
  }
  // A call of `rank`, which its device would have carried out, goes by messages, since other ranks passed other memory.
  void decline(std::uint32_t rank) noexcept { locals_[rank].declined = true; }
  // Whether map() would do or say something else than before.
  [[nodiscard]] bool can_map(std::uint32_t rank) const noexcept;
  // start() would have to wait for a thread that loads another kernel of the device, or frees its memory.
  [[nodiscard]] bool is_held_up(std::uint32_t rank) const { return locals_[rank].exchange->is_held_up(); }
  // Starts the kernel of `rank`: `call`, but for its memory, its numbers and its arithmetic. Ends as that does.
  std::shared_ptr<WorkState> start(std::uint32_t rank, ExchangeCall call, const CollectiveBuffers& buffers);
  // What is queued on `stream` of `device` from now on waits for the rank's kernels. False: they are another device's.
  bool order(std::uint32_t rank, const Device& device, StreamHandle stream);
  // The rank's kernels end soon, whatever they have done: the group carries out no more collectives.
  void end_kernels(std::uint32_t rank) noexcept;

 private:
  // A local rank. Its own members are constant once `opened`.
  struct Local {
    std::atomic<Standing> standing{Standing::none};  // as on its Board, which other processes may write
    // Bit t: the kernel for elements of type t is there, and `exchange` was opened; the kernel that reduces them is there. Set for
    // good: nothing of it goes before the group does.
    std::atomic<std::uint32_t> ready{0}, reduces{0};
    bool tried = false;
    bool mapped = false;    // map() has ended well
    bool declined = false;  // a call of its that could have been the first one went by messages
    bool told = false;      // why it has no kernel
    Device device;
    std::string card;  // PCI address of the device
    std::unique_ptr<DeviceExchange> exchange;
    std::array<void*, most_exchange_ranks> segments = {};
    std::vector<std::unique_ptr<Allocation>> imported;
    std::uint64_t next_round = 0;
    std::uint32_t last_shot = 0;
    std::shared_ptr<OrderedWorks> works;
  };
  Status open(std::uint32_t rank, const Device& device);
  Status map_others(std::uint32_t rank);
  Status map_one(std::uint32_t rank, std::uint32_t owner);
  void refuse(std::uint32_t rank, const Status& why);
  void stand(std::uint32_t rank, Standing standing) noexcept;
  [[nodiscard]] fused::MappedOffer& offer(std::uint32_t rank) const noexcept { return slots_->board(rank).mapped; }
  [[nodiscard]] Standing standing(std::uint32_t rank) const noexcept;

  Group& group_;
  std::optional<fused::Slots> slots_;  // none: the group has no shared memory
  bool nameable_ = false;              // constant after use()
  std::atomic<bool> usable_{false};
  mutable std::mutex mutex_;   // of prepare()
  std::vector<Local> locals_;  // by rank
};

}  // namespace mapped
}  // namespace hmc
