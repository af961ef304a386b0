// The Messenger of a Context: what it is made of, and what concerns all of it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/context_state.h"
#include "comm/messages/lanes.h"
#include "comm/messages/messenger.h"
#include "comm/messages/receives.h"
#include "comm/messages/rendezvous.h"
#include "comm/messages/sends.h"
#include "comm/messages/withdrawals.h"

namespace hmc::messaging {

inline bool peer_ended(const Target& target) {
  return target.peer != nullptr && (target.peer->phase() == PeerPhase::lost || target.peer->phase() == PeerPhase::closed);
}
Status check_message(const Target& target, std::int64_t tag, const MemoryView& view, bool receiving);

class MessengerImpl final : public Messenger {
 public:
  explicit MessengerImpl(ContextState& context);

  Result<std::shared_ptr<WorkState>> isend(const Target& to, std::int64_t tag, const MemoryView& view) override;
  Result<std::shared_ptr<WorkState>> irecv(const Target& from, std::int64_t tag, const MemoryView& view) override;
  Result<std::shared_ptr<WorkState>> isend_locked(const Target& to, std::int64_t tag, const MemoryView& view) override;
  Result<std::shared_ptr<WorkState>> irecv_locked(const Target& from, std::int64_t tag, const MemoryView& view) override;
  Status send(const Target& to, std::int64_t tag, const MemoryView& view, Deadline deadline) override;
  Result<MessageInfo> recv(const Target& from, std::int64_t tag, const MemoryView& view, Deadline deadline) override;
  bool on_signal(PeerState& peer, ByteSpan signal, bool stable) override;
  void on_peer_closing(PeerState& peer, const Status& reason) override;
  [[nodiscard]] bool quiet(const PeerState& peer, bool heard) const override;
  [[nodiscard]] bool receives_into(const DeviceSpan& memory) const override;
  void on_peer_gone(PeerState& peer, const Status& reason) override;
  void drop_departed(const PeerState* peer) override { receives_.drop_departed(peer); }
  void drop_scope(std::uint32_t scope) override { receives_.drop_scope(scope); }
  void watch_calls(std::uint32_t scope, CallWatcher* watcher) override { receives_.watch_calls(scope, watcher); }
  void add_counters(std::map<std::string, std::uint64_t>& counters) const override;
  [[nodiscard]] bool holds(const PeerState& peer) const override;
  void on_peer_let_go(PeerState& peer) override;
  void abandon(PeerState& peer, std::vector<std::shared_ptr<const void>>& kept) override;
  void on_context_closing(const Status& reason) override;
  void on_context_over(const Status& reason) override;

  // What was posted for `peer` or with it ends; null: everything.
  void end_operations(const PeerState* peer, const Status& reason);

  // ---- for operations ----
  [[nodiscard]] Withdrawals& withdrawals() noexcept { return withdrawals_; }
  [[nodiscard]] Sends& sends() noexcept { return sends_; }
  [[nodiscard]] Rendezvous& rendezvous() noexcept { return rendezvous_; }
  [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept { return context_.engine(); }

 private:
  ContextState& context_;
  Lanes lanes_;
  Rendezvous rendezvous_;
  Sends sends_;
  Receives receives_;
  Withdrawals withdrawals_;
};

}  // namespace hmc::messaging
