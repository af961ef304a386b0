// Turns: which operation sends next, and on which stream. Streams pull: whichever has room takes the next slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "transport/kit/operations.h"
#include "transport/kit/served_regions.h"
#include "transport/tcp/stream.h"

namespace hmc::tcp {

// A put's number names it to the peer. `moved`: put: handed to sockets; get: in place. `in_flight`: put: slices that are being
// written to sockets; get: requests.
struct Op final : kit::Operation {
  bool split = false;     // put: more than one slice, so its parts may arrive far apart
  bool end_sent = false;  // put: everything including its end has been given to a stream
};

// Null: there is none.
[[nodiscard]] inline Op* find(const kit::OperationTable& operations, std::uint64_t number) {
  return static_cast<Op*>(operations.find(number));
}

// Engine lock held.
class Turns {
 public:
  explicit Turns(std::shared_ptr<const ServedRegions> regions) noexcept : regions_(std::move(regions)) {}

  void add(Op& op) { queue_.push_back(&op); }
  // Sends nothing more of the operation.
  void remove(const Op& op) { std::erase(queue_, &op); }
  void ended(const Op& op) {
    if (op.split) --split_;
    remove(op);
  }
  void clear() noexcept { queue_.clear(); }

  // Is there a slice, a request or a reply for the stream's next burst?
  [[nodiscard]] bool can_fill(const Stream& stream) const noexcept;
  // Appends them to the burst, which has no slice or reply yet.
  void fill(Stream& stream);

 private:
  [[nodiscard]] bool may_send(const Op& put) const noexcept { return put.started || split_ < max_split_puts; }
  bool append_next(Stream& stream);
  bool append_put(Stream& stream, Op& op);
  bool append_get(Stream& stream, Op& op);
  void append_reply(Stream& stream);

  const std::shared_ptr<const ServedRegions> regions_;
  std::deque<Op*> queue_;  // operations with something left to send or to request
  std::uint64_t last_request_ = 0;
  std::size_t split_ = 0;  // puts of several slices that have started and not ended
};

}  // namespace hmc::tcp
