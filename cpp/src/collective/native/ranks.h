// Ranks: the local ranks of a group, as far as their vendor's collective library carries out its collectives.
//
// A rank's first call that names the library opens it. The first call that all ranks are able to make connects them: rank 0 makes
// the communicator's number, and each rank joins it on its own thread. Once all are connected, and each knows that all make the
// same call, each starts it. They learn that from their Boards where the group shares memory, else by messages (Part). If one
// could not connect, or two have one device, the group does without the library.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/native/boards.h"
#include "hmc/device.h"
#include "native/rank_communicator.h"
#include "progress/work_state.h"

namespace hmc {

class Group;

namespace native {

class Part;

class Ranks {
 public:
  // `group` has its ranks.
  explicit Ranks(Group& group);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // ---- engine lock not held ----
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

  // ---- engine lock held; only where it may be named ----
  // What a rank that prepare() said yes for offers.
  [[nodiscard]] Offer offer(std::uint32_t rank) const;
  // Whether the offers of all ranks, in order, fit together. Errors: unsupported, with the rank.
  [[nodiscard]] Status check(const std::vector<Offer>& offers) const;
  // How far a local rank is; another process may not write there.
  [[nodiscard]] Standing standing(std::uint32_t rank) const noexcept { return locals_[rank].standing; }
  void stand(std::uint32_t rank, Standing standing) noexcept { locals_[rank].standing = standing; }
  // The group does without the library from now on. `why` names a rank.
  void refuse(const Status& why);
  // Of a rank that prepare() said yes for. Null: of another.
  [[nodiscard]] const std::shared_ptr<RankCommunicator>& communicator(std::uint32_t rank) const noexcept {
    return locals_[rank].communicator;
  }
  // Ends when the device has carried it out, or once nothing of it runs any more.
  std::shared_ptr<WorkState> start(std::uint32_t rank, const Call& call, RankCommunicator::Points after);
  // What the rank runs ends soon: the group carries out no more collectives.
  void abort(std::uint32_t rank) noexcept;
  // The rank's calls that agree by messages, in the order in which it made them: the first one has its turn.
  [[nodiscard]] std::deque<Part*>& turns(std::uint32_t rank) noexcept { return locals_[rank].turns; }
  // How calls agree where the ranks share memory.
  [[nodiscard]] Boards& boards() noexcept { return boards_; }

 private:
  // Its device and its communicator are constant once the latter is there.
  struct Local {
    std::atomic<Standing> standing{Standing::none};
    bool told = false;  // why it does without
    Device device;
    std::shared_ptr<RankCommunicator> communicator;
    std::deque<Part*> turns;
  };
  Status make_communicator(std::uint32_t rank, const Device& device);

  Group& group_;
  Boards boards_;
  Library* library_ = nullptr;
  mutable std::mutex mutex_;   // of prepare() and refused_
  Status refused_;             // why the group does without
  std::vector<Local> locals_;  // by rank
};

}  // namespace native
}  // namespace hmc
