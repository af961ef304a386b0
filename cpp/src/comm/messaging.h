// Messenger: two-sided send and recv over the one-sided SPI, once for all transports. One per Context.
//
// Eager: head and payload in one signal. Rendezvous: the sender announces (RTS, with its exported region), the receiver answers
// (CTS, with its own), then either side or both move the bytes one-sidedly, and both learn when all of it is in place (FIN).
#pragma once

#include <cstdint>
#include <memory>

#include "comm/envelope.h"
#include "comm/peer_state.h"
#include "hmc/peer.h"
#include "progress/work_state.h"

namespace hmc {

class ContextState;

class Messenger {
 public:
  static std::unique_ptr<Messenger> create(ContextState& context);
  virtual ~Messenger() = default;

  // ---- engine lock NOT held (they take it) ----
  virtual Result<std::shared_ptr<WorkState>> isend(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                   std::int64_t tag, const MemoryView& view) = 0;
  // `peer` null: any source of the scope (envelope.src = any_rank), checked against ContextState::scope_has.
  virtual Result<std::shared_ptr<WorkState>> irecv(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                   std::int64_t tag, const MemoryView& view) = 0;
  // Blocking forms: the hot path for small messages allocates nothing. A timed-out send or recv is cancelled where that is still
  // possible; the message says whether it was (so that nothing lands in the caller's memory after a timeout that says so).
  virtual Status send(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag, const MemoryView& view,
                      Deadline deadline) = 0;
  virtual Result<MessageInfo> recv(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag,
                                   const MemoryView& view, Deadline deadline) = 0;

  // ---- engine lock held ----
  // As isend and irecv, for whoever holds the lock already: many posts under one locking, and collectives that go on from
  // Engine::defer(). Not from inside a completion.
  virtual Result<std::shared_ptr<WorkState>> isend_locked(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                          std::int64_t tag, const MemoryView& view) = 0;
  virtual Result<std::shared_ptr<WorkState>> irecv_locked(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                          std::int64_t tag, const MemoryView& view) = 0;
  virtual void on_signal(PeerState& peer, ByteSpan signal) = 0;          // first byte in messaging_kinds
  virtual void on_peer_gone(PeerState& peer, const Status& reason) = 0;  // lost or closed: ends every operation pending on it
  virtual void on_context_closing(const Status& reason) = 0;
};

}  // namespace hmc
