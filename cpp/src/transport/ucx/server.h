// Server: what the peer asks of regions here in messages, and the answers to it.
//
// Bytes are copied as they come, within UCX's callback, in whatever order that is. A put is answered when its end is taken: that
// happens in the order of sending, so all its bytes have been copied then, and whatever the peer's program learns of it afterwards
// comes behind them. That earns Complete::remote, and lets an attached signal follow at once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "transport/ucx/channel.h"
#include "transport/ucx/region.h"

namespace hmc::ucx {

// The endpoint owns it. Engine lock held.
class Server {
 public:
  Server(std::shared_ptr<Regions> regions, Channel& channel, Requests& requests) noexcept
      : regions_(std::move(regions)), channel_(channel), requests_(requests) {}

  [[nodiscard]] bool empty() const noexcept { return answers_.empty() && serving_.empty(); }
  // Bytes of a put. False: the peer cannot have sent them.
  bool place(const MessageHead& head, ByteSpan body);
  // The end of a put: answers it. True: all its bytes are in place; false: they were refused; none: more than a peer leaves
  // unanswered.
  std::optional<bool> on_put(const MessageHead& head);
  // False: more than a peer asks for.
  bool on_get(const MessageHead& head);
  // What there is room for. True if any went.
  bool send_answers();
  void stop() noexcept;

 private:
  static constexpr std::size_t turn_bytes = 1 << 20;  // of answers sent at a time
  static constexpr std::size_t max_serving = 4096;    // gets
  struct Serving {
    MessageHead head;
    std::size_t sent;
  };

  // Null, with the reason, if the peer may not have that.
  const UcxLocalRegion* region_of(const MessageHead& head, std::size_t bytes, bool to_write, Code& refusal) const;

  const std::shared_ptr<Regions> regions_;
  Channel& channel_;
  Requests& requests_;
  std::deque<MessageHead> answers_;
  std::deque<Serving> serving_;
  std::map<std::uint64_t, Code> failed_puts_;  // until the peer tells their end
};

}  // namespace hmc::ucx
