// EndpointSlot: one transport's connection to one peer, from the exchange of addresses to its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/completion.h"
#include "comm/connection/backoff.h"
#include "comm/routing/transport_set.h"
#include "progress/one_shot_timer.h"
#include "transport/transport.h"

namespace hmc {

class PeerImpl;

// One transport of a Context.
struct TransportSlot {
  std::string name;
  std::unique_ptr<Transport> transport;  // null: could not be made
  Capabilities capabilities;             // reason says why not, when unavailable
  Bytes domain;
  TransportSet bit = 0;
  bool on_carriers = false;  // builds on transports of CPU memory
  bool self_only = false;    // kept for transfers within this Context although the filter leaves it out
  std::uint64_t puts = 0, put_bytes = 0, gets = 0, get_bytes = 0, staged_bytes = 0;
};

// Engine lock held throughout.
class EndpointSlot final : public EndpointSink, public Completion {
 public:
  enum class State : std::uint8_t { waiting, connecting, ready, failed };

  EndpointSlot(PeerImpl& peer, TransportSlot& transport, std::uint32_t attempt);

  void on_signal(ByteSpan signal) override;
  bool on_signal_in_place(ByteSpan signal) override;
  void on_failed(const Status& reason) override;
  void complete(Status status) noexcept override;  // of connect

  [[nodiscard]] PeerImpl& peer() noexcept { return peer_; }
  [[nodiscard]] TransportSlot& transport() const noexcept { return transport_; }
  [[nodiscard]] std::uint32_t attempt() const noexcept { return attempt_; }

  std::unique_ptr<Endpoint> endpoint;
  State state = State::waiting;
  struct {
    bool here = false, there = false;
  } connected;
  Status failure;
  std::uint32_t operations = 0;  // one-sided ones of comm, posted and not complete
  bool unflushed = false;        // puts completed at level local since the last flush
  std::uint32_t flushes = 0;     // in flight
  bool notified = false;         // notifications, or ends of messages, went by it since the last mark (Receipts)
  struct {
    std::uint64_t out = 0, in = 0;
  } credit;  // cost of payload notifications that went and came with puts

  // ---- its end and what follows ----
  [[nodiscard]] std::string trouble() const;  // why it is not used now
  [[nodiscard]] bool being_retried() const noexcept { return backoff.used() && state != State::ready && state != State::failed; }
  bool closing = false;       // failed: its endpoint is not destroyed yet
  bool peer_stopped = false;  // the peer delivers nothing of it any more
  Backoff backoff;
  OneShotTimer retry;

 private:
  PeerImpl& peer_;
  TransportSlot& transport_;
  std::uint32_t attempt_;
};

// Runs `action` once what was posted on `slot` is complete at the peer. False: its connection does not take the flush.
bool when_flushed(EndpointSlot& slot, std::function<void(const Status&)> action);

}  // namespace hmc
