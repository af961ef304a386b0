// Signals: the active messages of one endpoint, both directions, with the attached ones that met a full ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/blob.h"
#include "hmc/status.h"
#include "transport/shm/channel_memory.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/shared.h"
#include "transport/shm/signal_ring.h"
#include "transport/transport.h"

namespace hmc::shm {

// All calls with the engine lock held.
class Signals {
 public:
  // The keys are those of the rings' tags. All arguments outlive this, or are not used after clear().
  void connect(const ChannelMemory& in, std::uint64_t in_key, ChannelMemory& out, std::uint64_t out_key, Doorbell& doorbell);

  // ---- outgoing ----
  // Errors: would_block (can_send() says when it is worth another call), invalid_argument (too long), out_of_memory (before any
  // signal of either side).
  Status post(ByteSpan head, ByteSpan body);
  // May an operation with a signal of so many bytes be accepted? Errors as of post().
  Status accept(std::size_t bytes);
  // True: push() may follow.
  [[nodiscard]] bool has_room(std::size_t bytes) {
    return waiting_.empty() && producer_.has_room(bytes) && out_->reserve_signals(producer_.end_of(bytes)).ok();
  }
  // Its release makes earlier stores visible first.
  void push(ByteSpan head, ByteSpan body) noexcept {
    producer_.push(head, body);
    doorbell_->ring();
  }
  // Sends an accepted one, or queues it: false, then send_waiting() is needed.
  bool attach(ByteSpan signal);
  bool send_waiting();                                                          // true if any went, or post() is worth another call
  [[nodiscard]] bool holds_back() const noexcept { return !waiting_.empty(); }  // accepted ones
  [[nodiscard]] bool waits() const noexcept { return holds_back() || blocked_; }
  [[nodiscard]] bool can_send();
  // Nothing is sent or delivered any more.
  void clear() noexcept {
    waiting_.clear();
    over_ = true;
  }

  // ---- incoming ----
  [[nodiscard]] bool ready(std::memory_order order = std::memory_order_acquire) const noexcept { return consumer_.ready(order); }
  // Passes signals on to `sink` and takes their bytes off `budget` (with `all`: what they take in the ring) until that is spent or,
  // unless `all`, a poll has done its share or its waiter has what it waits for. A callback may clear() this. Errors: protocol, the
  // peer wrote what is no signal.
  Status deliver(EndpointSink& sink, Shared& shared, std::size_t& budget, bool all);

 private:
  void pass() noexcept {
    consumer_.pass();
    if (consumer_.publish()) doorbell_->ring();
  }
  Status blocked(std::size_t bytes, const Status& reason);

  ChannelMemory* out_ = nullptr;
  Doorbell* doorbell_ = nullptr;
  SignalConsumer consumer_;
  SignalProducer producer_;
  std::deque<Bytes> waiting_;
  bool over_ = false;              // clear() was called
  bool blocked_ = false;           // a post() met a full ring
  std::size_t blocked_bytes_ = 0;  // of that signal
};

}  // namespace hmc::shm
