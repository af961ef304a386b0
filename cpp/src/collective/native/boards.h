// Boards: how the ranks of a group that shares memory agree to call the vendor's library: through what each says on its Board.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "collective/fused/slots.h"
#include "hmc/status.h"
#include "native/api.h"

namespace hmc {

class Group;

namespace native {

enum class Standing : std::uint32_t { none, offered, connecting, connected, refused };

// What a rank offers: its card, and the library that it has.
struct Offer {
  std::string host;  // where the card is
  std::string card;  // its PCI address
  std::uint32_t version = 0;
};

class Boards {
 public:
  explicit Boards(Group& group) noexcept : group_(group) {}

  // ---- engine lock not held ----
  // Once, before the group's first collective.
  void use(const fused::Slots& slots) { slots_ = slots; }
  // Of a rank that Ranks::prepare() said yes for: says so on its Board.
  void offer(std::uint32_t rank);

  // ---- engine lock held ----
  // All ranks have announced the call with that sequence for the library. Takes the next step toward it.
  enum class Connection : std::uint8_t { done, awaited, refused };
  Connection connect(std::uint32_t rank, std::uint64_t sequence);
  // Whether connect() waits for what `other` has not done yet.
  [[nodiscard]] bool awaits(std::uint32_t other, std::uint64_t sequence) const noexcept;
  // Whether connect() would do or say something else than before.
  [[nodiscard]] bool can_connect(std::uint32_t rank, std::uint64_t sequence) const noexcept;

 private:
  // Whether all that the ranks have offered fits together.
  [[nodiscard]] Status check_offers() const;
  void begin_to_connect(std::uint32_t rank);
  void numbered(const Result<UniqueId>& id);  // by rank 0, which is here
  void join(std::uint32_t rank, const UniqueId& id);
  template <class Act>
  [[nodiscard]] auto later(Act act);  // acts with the engine lock held, if the group is still there
  void connected(std::uint32_t rank, const Status& status);
  void refuse(std::uint32_t rank, const Status& why);
  void stand(std::uint32_t rank, Standing standing) noexcept;
  [[nodiscard]] fused::NativeOffer& board(std::uint32_t rank) const noexcept { return slots_->board(rank).native; }
  [[nodiscard]] Standing standing(std::uint32_t rank) const noexcept;
  [[nodiscard]] bool all_stand(Standing wanted) const noexcept;
  [[nodiscard]] bool id_is_there() const noexcept { return board(0).has_id.load(std::memory_order_seq_cst) != 0; }

  Group& group_;
  std::mutex mutex_;                   // of offer()
  std::optional<fused::Slots> slots_;  // none: the group has no shared memory
};

}  // namespace native
}  // namespace hmc
