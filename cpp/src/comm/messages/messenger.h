// Messenger: two-sided send and recv over the one-sided SPI, once for all transports. One per Context.
//
// Eager: head and payload in one signal. Rendezvous: the sender announces (RTS, with its exported region), the receiver answers
// (CTS, with its own), then either side or both move the bytes one-sidedly, and both learn when all of it is in place (FIN).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/peer_state.h"
#include "comm/target.h"
#include "comm/wire/envelope.h"
#include "hmc/peer.h"
#include "progress/work_state.h"

namespace hmc {

class ContextState;

class Messenger {
 public:
  static std::unique_ptr<Messenger> create(ContextState& context);
  virtual ~Messenger() = default;

  // ---- engine lock NOT held (they take it) ----
  // Sends wait for the fences of the peer that are pending when they are posted.
  virtual Result<std::shared_ptr<WorkState>> isend(const Target& to, std::int64_t tag, const MemoryView& view) = 0;
  // From any source of a scope: checked against RankScopes.
  virtual Result<std::shared_ptr<WorkState>> irecv(const Target& from, std::int64_t tag, const MemoryView& view) = 0;
  // Blocking forms: the hot path for small messages allocates nothing. A timed-out send or recv is cancelled where that is still
  // possible; the message says whether it was (so that nothing lands in the caller's memory after a timeout that says so).
  virtual Status send(const Target& to, std::int64_t tag, const MemoryView& view, Deadline deadline) = 0;
  virtual Result<MessageInfo> recv(const Target& from, std::int64_t tag, const MemoryView& view, Deadline deadline) = 0;

  // ---- engine lock held ----
  // As isend and irecv, for whoever holds the lock already: many posts under one locking, and collectives that go on from
  // Engine::defer(). Not from inside a completion.
  virtual Result<std::shared_ptr<WorkState>> isend_locked(const Target& to, std::int64_t tag, const MemoryView& view) = 0;
  virtual Result<std::shared_ptr<WorkState>> irecv_locked(const Target& from, std::int64_t tag, const MemoryView& view) = 0;
  // First byte in messaging_kinds. Not `stable`: the peer can still write to it. False: then it was left alone, and is to be
  // copied.
  virtual bool on_signal(PeerState& peer, ByteSpan signal, bool stable) = 0;
  // It begins to close: what has not begun ends, sends that were announced are withdrawn, and the rest goes on.
  virtual void on_peer_closing(PeerState& peer, const Status& reason) = 0;
  // Nothing of this side is in flight with it, nor of it with this side. `heard`: it has said so of itself.
  [[nodiscard]] virtual bool quiet(const PeerState& peer, bool heard) const = 0;
  // A receive that has its message is in flight into a part of `memory`.
  [[nodiscard]] virtual bool receives_into(const DeviceSpan& memory) const = 0;
  // Lost or closed, its endpoints have ended: every operation pending on it ends, but for those on memory that its process may
  // still access.
  virtual void on_peer_gone(PeerState& peer, const Status& reason) = 0;
  [[nodiscard]] virtual bool holds(const PeerState& peer) const = 0;  // there are such
  virtual void on_peer_let_go(PeerState& peer) = 0;                   // it does not any more: they end
  // As on_peer_let_go(), though it may still access them: owners of their memory go to `kept`.
  virtual void abandon(PeerState& peer, std::vector<std::shared_ptr<const void>>& kept) = 0;
  // The last handle of a peer that had ended is gone: so is what it left unread. `peer` names it only.
  virtual void drop_departed(const PeerState* peer) = 0;
  // This process has closed the Communicator of `scope`: its messages are discarded, its receives end.
  virtual void drop_scope(std::uint32_t scope) = 0;
  virtual void watch_calls(std::uint32_t scope, CallWatcher* watcher) = 0;  // null: no longer
  virtual void add_counters(std::map<std::string, std::uint64_t>& counters) const = 0;
  // The Context begins to close, before its peers do: receives that are not matched end.
  virtual void on_context_closing(const Status& reason) = 0;
  // The Context goes: ends everything.
  virtual void on_context_over(const Status& reason) = 0;
};

// This process sends nothing more to the connected `peer` in `scope`: the peer's receives there end, after what was sent before.
// Engine lock held.
void leave_scope(PeerState& peer, std::uint32_t scope);

}  // namespace hmc
