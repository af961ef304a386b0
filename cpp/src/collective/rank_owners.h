// RankOwners: which peer owns which ranks of a group, and which rank a RemoteBuffer belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "hmc/buffer.h"
#include "hmc/status.h"
#include "progress/engine.h"

namespace hmc {

class PeerState;

class RankOwners {
 public:
  struct Owned {
    std::uint32_t first = 0, count = 0;
  };

  explicit RankOwners(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // Ranks in ascending order, before the object is shared with other threads.
  void add(const PeerState* peer, std::uint32_t rank);

  // ---- any thread, engine lock not held ----
  // Notes whose buffer this is. Only a process with several ranks is told apart by the buffer.
  void note(const RemoteBuffer& remote, const PeerState* peer, std::uint32_t rank);
  // Errors: invalid_argument (an empty handle, a process outside the group).
  [[nodiscard]] Result<std::uint32_t> rank_of(const RemoteBuffer& remote) const;

  // Immutable after add(): any thread.
  [[nodiscard]] const std::unordered_map<const PeerState*, Owned>& all() const noexcept { return owned_; }

 private:
  [[nodiscard]] Owned owned_by(const PeerState* peer) const noexcept;

  const std::shared_ptr<Engine> engine_;
  std::unordered_map<const PeerState*, Owned> owned_;
  // Guarded by the engine lock.
  struct Noted {
    std::weak_ptr<RemoteBufferState> state;
    std::uint32_t rank;
  };
  std::unordered_map<const RemoteBufferState*, Noted> noted_;
  std::size_t sweep_at_ = 64;  // entries; expired ones are then removed
};

}  // namespace hmc
