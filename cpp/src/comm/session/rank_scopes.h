// RankScopes: which peer owns which rank of a Communicator. Owned by PeerTable. Engine lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "comm/peer_state.h"

namespace hmc {

class ContextImpl;

class RankScopes {
 public:
  explicit RankScopes(ContextImpl& context) noexcept : context_(context) {}

  void add(std::uint32_t scope, std::vector<std::shared_ptr<PeerState>> owner_by_rank);
  // The scope with its unread notifications and messages.
  void remove(std::uint32_t scope);
  void clear() noexcept { owners_.clear(); }

  // Null: there is no such scope or rank.
  [[nodiscard]] PeerState* owner(std::uint32_t scope, std::uint32_t rank) const noexcept;
  // Signals that claim another peer's rank are never matched.
  [[nodiscard]] bool has(std::uint32_t scope, std::uint32_t rank, const PeerState& peer) const noexcept {
    return owner(scope, rank) == &peer;
  }
  // ok while another rank of the scope than `rank` may still send to it, or the scope is unknown. Else why the last one ended.
  [[nodiscard]] Status senders_left(std::uint32_t scope, std::uint32_t rank) const;

 private:
  ContextImpl& context_;
  std::unordered_map<std::uint32_t, std::vector<std::shared_ptr<PeerState>>> owners_;
};

}  // namespace hmc
