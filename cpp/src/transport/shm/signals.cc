#include "transport/shm/signals.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/log.h"

namespace hmc::shm {

namespace {

constexpr std::size_t max_waiting_signals = 64;
constexpr int signals_per_poll = 64;
// Shorter signals are copied out at once: that costs less than asking.
constexpr std::size_t in_place_from = 256;

const Status& ring_full() {
  static const Status& status =
      *new Status(Code::would_block, "the peer's signal ring is full");  // never destroyed: threads send during exit
  return status;
}

// The two ends are in the middle of something, and a signal of that cannot be given up: it waits for memory.
const Status& no_memory(const Status& reserved) {
  static const Status& status = *new Status(
      Code::would_block, "the host has no memory for more of the peer's signal ring");  // never destroyed: threads send during exit
  warn_once("shm.ring_memory", "messages wait for memory: " + reserved.str());
  return status;
}

}  // namespace

void Signals::connect(const ChannelMemory& in, std::uint64_t in_key, ChannelMemory& out, std::uint64_t out_key,
                      Doorbell& doorbell) {
  out_ = &out;
  doorbell_ = &doorbell;
  consumer_ = SignalConsumer(in.signals(), in.sizes().signal_bytes, in_key, &in.control().signal_head);
  producer_ = SignalProducer(out.signals(), out.sizes().signal_bytes, out_key, &out.control().signal_head);
}

Status Signals::blocked(std::size_t bytes, const Status& reason) {
  blocked_ = true;
  blocked_bytes_ = bytes;
  return reason;
}

Status Signals::post(ByteSpan head, ByteSpan body) {
  const std::size_t bytes = head.size() + body.size();
  if (bytes > max_signal) [[unlikely]] {
    return Status(Code::invalid_argument, "a signal of " + std::to_string(bytes) + " bytes; at most " + std::to_string(max_signal));
  }
  if (Status reserved = out_->reserve_signals(producer_.end_of(bytes)); !reserved.ok()) [[unlikely]]
    return out_->has_signals() || consumer_.has_found() ? blocked(bytes, no_memory(reserved)) : reserved;
  if (!waiting_.empty() || !producer_.has_room(bytes)) [[unlikely]]
    return blocked(bytes, ring_full());
  push(head, body);
  return {};
}

Status Signals::accept(std::size_t bytes) {
  if (bytes > max_signal) {
    return Status(Code::invalid_argument,
                  "an attached signal of " + std::to_string(bytes) + " bytes; at most " + std::to_string(max_signal));
  }
  HMC_TRY(out_->reserve_signals(out_->sizes().signal_bytes));  // it may wait, and then has to be sent
  if (waiting_.size() < max_waiting_signals) return {};
  return blocked(bytes, Status(Code::would_block, "too many attached signals wait for room in the peer's signal ring"));
}

bool Signals::attach(ByteSpan signal) {
  if (waiting_.empty() && producer_.has_room(signal.size())) {
    push(signal, {});
    return true;
  }
  waiting_.emplace_back(signal.begin(), signal.end());
  return false;
}

bool Signals::send_waiting() {
  bool moved = false;
  while (!waiting_.empty() && producer_.has_room(waiting_.front().size())) {
    push(waiting_.front(), {});
    waiting_.pop_front();
    moved = true;
  }
  if (blocked_ && waiting_.empty() && producer_.has_room(blocked_bytes_)) {
    blocked_ = false;
    moved = true;  // whoever met the full ring can post again
  }
  return moved;
}

bool Signals::can_send() {
  return waiting_.empty() ? blocked_ && producer_.has_room(blocked_bytes_) : producer_.has_room(waiting_.front().size());
}

Status Signals::deliver(EndpointSink& sink, Shared& shared, std::size_t& budget, bool all) {
  for (int i = 0; (all || i < signals_per_poll) && budget != 0 && !over_; ++i) {
    ByteSpan signal;
    const auto next = consumer_.find(signal);
    if (next == SignalConsumer::Next::none) break;
    if (next == SignalConsumer::Next::broken) {
      return Status(Code::protocol, "the peer wrote a malformed record into the signal ring");
    }
    const std::size_t size = signal.size();
    if (size >= in_place_from && sink.on_signal_in_place(signal)) {
      if (!over_) pass();
    } else {
      std::memcpy(shared.incoming.data(), signal.data(), size);
      pass();
      sink.on_signal({shared.incoming.data(), size});
    }
    budget -= std::min(budget, all ? record_bytes(size) : size);
    // The waiter may post a receive for the next message: delivered now, it would be copied once more.
    if (!all && shared.engine->waiter_is_served()) break;
  }
  return {};
}

}  // namespace hmc::shm
