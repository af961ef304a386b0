// Ranks: the local ranks of a group, as far as their vendor's collective library carries out its collectives.
//
// A rank's first call that names the library opens it and offers the rank's device on its Board. The
// first call for which all ranks have done that connects them: rank 0 makes the communicator's number, and each rank joins on a
// thread of its own. Once all are connected, and each knows that all make the same call, each starts it. If one could not connect,
// or two have one device, the group does without the library.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collective/fused/slots.h"
#include "hmc/device.h"
#include "native/rank_communicator.h"
#include "progress/work_state.h"

namespace hmc {

class Group;

namespace native {

enum class Standing : std::uint32_t { none, offered, connecting, connected, refused };

class Ranks {
 public:
  explicit Ranks(Group& group) noexcept : group_(group) {}
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // ---- engine lock not held ----
  // Once, before the group's first collective.
  void use(const fused::Slots& slots);
  // Opens the library; only where it may be named. Errors: why the group does without it, as far as this process knows.
  Status open();
  // Whether `rank` takes part in such a call with its device, which it offers.
  bool prepare(std::uint32_t rank, const Device& device);
  // The group carries out no more collectives. `broken`: not all ranks may come to leave the communicator.
  void close(bool broken);

  // ---- any thread ----
  // Whether the library may be asked for by name: the ranks' devices are of one vendor that has one. Alike on every rank.
  [[nodiscard]] bool may_be_named() const noexcept { return library_ != nullptr; }
  // Why the group does without it, as far as that is known, which opens nothing; only where it may be named.
  [[nodiscard]] Status obstacle() const;
  // "NCCL 2.27.3", only where it may be named.
  [[nodiscard]] std::string describe() const { return library_->describe(); }

  // ---- engine lock held ----
  // All ranks have announced the call with that sequence for the library. Takes the next step toward it.
  enum class Connection : std::uint8_t { done, awaited, refused };
  Connection connect(std::uint32_t rank, std::uint64_t sequence);
  // Whether connect() waits for what `other` has not done yet.
  [[nodiscard]] bool awaits(std::uint32_t other, std::uint64_t sequence) const noexcept;
  // Whether connect() would do or say something else than before.
  [[nodiscard]] bool can_connect(std::uint32_t rank, std::uint64_t sequence) const noexcept;
  // Ends when the device has carried it out, or once nothing of it runs any more.
  std::shared_ptr<WorkState> start(std::uint32_t rank, const Call& call, RankCommunicator::Points after);
  // What the rank runs ends soon: the group carries out no more collectives.
  void abort(std::uint32_t rank) noexcept;

 private:
  // Its own members are constant once `communicator` is there.
  struct Local {
    std::atomic<Standing> standing{Standing::none};  // as on its Board, which other processes may write
    bool told = false;                               // why it does without
    Device device;
    std::shared_ptr<RankCommunicator> communicator;
  };
  Status offer(std::uint32_t rank, const Device& device);
  // Whether all that the ranks have offered fits together.
  Status check_offers() const;
  void begin_to_connect(std::uint32_t rank);
  void publish_id(const UniqueId& id);
  void connected(std::uint32_t rank, const Status& status);
  void refuse(std::uint32_t rank, const Status& why);
  void stand(std::uint32_t rank, Standing standing) noexcept;
  [[nodiscard]] fused::NativeOffer& board(std::uint32_t rank) const noexcept { return slots_->board(rank).native; }
  [[nodiscard]] Standing standing(std::uint32_t rank) const noexcept;
  [[nodiscard]] bool all_stand(Standing wanted) const noexcept;
  [[nodiscard]] bool id_is_there() const noexcept { return board(0).has_id.load(std::memory_order_seq_cst) != 0; }

  Group& group_;
  std::optional<fused::Slots> slots_;  // none: the group has no shared memory
  Library* library_ = nullptr;         // constant after use()
  mutable std::mutex mutex_;           // of prepare() and refused_
  Status refused_;                     // why the group does without
  std::vector<Local> locals_;          // by rank
};

}  // namespace native
}  // namespace hmc
