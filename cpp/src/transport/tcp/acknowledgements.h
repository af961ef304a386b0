// Acknowledgements: the puts of the peer that are in place and not acknowledged yet. One frame acknowledges consecutive puts.
#pragma once

#include <cstdint>
#include <utility>

#include "transport/tcp/frames.h"

namespace hmc::tcp {

// Engine lock held.
class Acknowledgements {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  // `out` receives the frame of earlier puts that this one does not continue.
  void add(std::uint64_t put, Bytes& out) {
    if (count_ != 0 && first_ + count_ == put) {
      ++count_;
      return;
    }
    append_to(out);
    first_ = put;
    count_ = 1;
  }
  void append_to(Bytes& out) {
    if (count_ == 0) return;
    Header header;
    header.type = FrameType::ack;
    header.op = first_;
    header.a = std::exchange(count_, 0);
    append(out, header);
  }
  void clear() noexcept { count_ = 0; }

 private:
  std::uint64_t first_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace hmc::tcp
