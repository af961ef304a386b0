// ActiveMessageQueue: the signals of puts whose bytes are in place, which wait until the wire takes them.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "base/blob.h"

namespace hmc::kit {

// Bounded by its users: no put with a signal is accepted while it is full. Engine lock held.
class ActiveMessageQueue {
 public:
  struct Message {
    Bytes body;
    std::uint64_t put = 0;  // the number of its put, where the transport tells the peer; else 0
  };

  [[nodiscard]] bool empty() const noexcept { return messages_.empty(); }
  [[nodiscard]] bool full() const noexcept { return messages_.size() >= limit; }
  void push(ByteSpan body, std::uint64_t put) { messages_.push_back({Bytes(body.begin(), body.end()), put}); }
  [[nodiscard]] Message pop() {
    Message first = std::move(messages_.front());
    messages_.pop_front();
    return first;
  }
  void put_back(Message first) { messages_.push_front(std::move(first)); }
  void clear() noexcept { messages_.clear(); }

 private:
  static constexpr std::size_t limit = 64;
  std::deque<Message> messages_;
};

}  // namespace hmc::kit
