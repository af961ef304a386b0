// Connections: one peer's connections by every transport, from the exchange of addresses to failure, retry and end. Owned by
// PeerImpl. Engine lock held throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "comm/connection/endpoint_slot.h"
#include "comm/routing/peer_routes.h"
#include "comm/wire/codec.h"
#include "hmc/status.h"

namespace hmc {

class Connections {
 public:
  explicit Connections(PeerImpl& peer) noexcept : peer_(peer) {}

  // Those of the last attempts.
  [[nodiscard]] const std::vector<std::unique_ptr<EndpointSlot>>& all() const noexcept { return slots_; }
  [[nodiscard]] EndpointSlot* find(std::string_view transport_name) noexcept;
  [[nodiscard]] Endpoint* endpoint(std::string_view transport_name) noexcept;  // null unless ready

  // Makes this side's endpoint and sends its address. Always returns a slot; its state is failed when that did not work.
  EndpointSlot* open(TransportSlot& transport, std::uint32_t attempt);
  // Connects the endpoint of the peer that is this Context.
  void connect_self(EndpointSlot& slot);
  // For want of another connection: one of the quarantined that is being retried, or (its state is failed) soon will be; null if
  // all have failed too often.
  EndpointSlot* wake_resting(const std::vector<PeerRoutes::Candidate>& resting);
  // The peer has ended, or the slots end with it.
  void stop_retries();
  void tear_down(const Status& reason);

  // ---- from the endpoints ----
  void on_connected(EndpointSlot& slot, const Status& status);
  void on_failed(EndpointSlot& slot, const Status& reason);
  // The other side has the connection, by its word or by its first signal.
  void on_connected_there(EndpointSlot& slot);

  // An operation of this side that was posted by `slot` has ended.
  void operation_done(EndpointSlot& slot);

  // ---- from the peer, over control ----
  void on_address(const wire::Address& address, std::vector<UniqueFd> fds);
  void on_note(const wire::EndpointNote& note, bool ready);
  void on_stopped(const wire::Stopped& m);

 private:
  [[nodiscard]] EndpointSlot* find(std::string_view transport_name, std::uint32_t attempt) noexcept;
  EndpointSlot& next_slot(TransportSlot& transport, std::uint32_t attempt);
  EndpointSlot* reopen(EndpointSlot& failed) { return open(failed.transport(), failed.attempt() + 1); }
  void retry_at(EndpointSlot& slot, Deadline when);
  void quarantine(EndpointSlot& slot, bool in_use);
  void ready_if_connected(EndpointSlot& slot);
  void failed(EndpointSlot& slot, const Status& reason, bool tell_peer);
  void closed(EndpointSlot& slot);
  [[nodiscard]] Status fatal_for_peer(const EndpointSlot& slot) const;
  void send_note(const EndpointSlot& slot, const Status& status);

  PeerImpl& peer_;  // its phase, control channel, routes, messages and end
  std::vector<std::unique_ptr<EndpointSlot>> slots_;
  std::vector<std::unique_ptr<EndpointSlot>> old_slots_;  // of earlier attempts
};

}  // namespace hmc
