// RankScopes: which peer owns which rank of a Communicator. Owned by PeerTable. Engine lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "comm/peer_state.h"

namespace hmc {

class ContextImpl;

Status communicator_closed();  // by this process

class RankScopes {
 public:
  explicit RankScopes(ContextImpl& context) noexcept : context_(context) {}

  void add(std::uint32_t scope, std::vector<std::shared_ptr<PeerState>> owner_by_rank);
  // The scope with its unread notifications and messages.
  void remove(std::uint32_t scope);
  void clear() noexcept { owners_.clear(); }
  // The application goes on without that peer: see ContextClosing::expect_lost().
  void leave_out(const PeerState& peer);

  // Null: there is no such scope or rank.
  [[nodiscard]] PeerState* owner(std::uint32_t scope, std::uint32_t rank) const noexcept;
  // Signals that claim another peer's rank are never matched.
  [[nodiscard]] bool has(std::uint32_t scope, std::uint32_t rank, const PeerState& peer) const noexcept {
    return owner(scope, rank) == &peer;
  }
  [[nodiscard]] std::vector<std::uint32_t> ranks_of(std::uint32_t scope, const PeerState& peer) const;
  // The scope was here and was removed: late signals of it are discarded.
  [[nodiscard]] bool is_over(std::uint32_t scope) const noexcept {
    return !over_.empty() && (over_.contains(scope) || earlier_over_.contains(scope));
  }
  // Errors: closed, for a scope that is over.
  [[nodiscard]] Status open(std::uint32_t scope) const { return is_over(scope) ? communicator_closed() : Status(); }
  // ok while another rank of the scope than `rank` may still send to it, or the scope is unknown. Else why the last one ended.
  [[nodiscard]] Status senders_left(std::uint32_t scope, std::uint32_t rank) const;
  // As senders_left(), of messages: a rank that closed the Communicator sends none. Its notifications may come later than that
  // news.
  [[nodiscard]] Status message_senders_left(std::uint32_t scope, std::uint32_t rank) const;

 private:
  template <class WhyNot>  // why_not(peer, rank): why it sends no more; ok if it may
  [[nodiscard]] Status senders_left(std::uint32_t scope, std::uint32_t rank, WhyNot why_not) const;

  ContextImpl& context_;
  std::unordered_map<std::uint32_t, std::vector<std::shared_ptr<PeerState>>> owners_;
  std::unordered_set<std::uint32_t> over_, earlier_over_;
};

}  // namespace hmc
