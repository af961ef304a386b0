// Mapped channels: the memfd of a ring, made here or received from a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/blob.h"
#include "base/fd.h"
#include "hmc/status.h"
#include "transport/shared_pages.h"
#include "transport/shm/layout.h"

namespace hmc::shm {

class ChannelMemory {
 public:
  ChannelMemory() noexcept = default;
  // A fresh inbound channel: full size, sealed, no page of it used yet.
  static Result<ChannelMemory> create(const Sizes& sizes);
  // A peer's inbound channel. Errors: protocol when it is not what it should be.
  static Result<ChannelMemory> attach(const UniqueFd& fd, const Sizes& sizes);

  [[nodiscard]] const Sizes& sizes() const noexcept { return sizes_; }
  [[nodiscard]] Control& control() const noexcept { return *reinterpret_cast<Control*>(pages_.data()); }
  [[nodiscard]] std::byte* signals() const noexcept { return pages_.data() + control_bytes; }
  [[nodiscard]] std::byte* slot(std::uint64_t number) const noexcept {
    return pages_.data() + control_bytes + sizes_.signal_bytes + (number % slot_count) * sizes_.slot_bytes;
  }
  [[nodiscard]] const UniqueFd& fd() const noexcept { return pages_.fd(); }
  void drop_fd() noexcept { pages_.drop_fd(); }

  // The producer reserves the pages of a ring before it first writes to them: a store cannot fail for want of memory.
  // Errors: out_of_memory.
  Status reserve_signals(std::uint64_t end) {  // up to this place of the first lap
    return end <= signals_reserved_ ? Status() : reserve_more_signals(end);
  }
  [[nodiscard]] bool has_signals() const noexcept { return signals_reserved_ != 0; }
  Status reserve_slots();

 private:
  Status reserve_more_signals(std::uint64_t end);

  Sizes sizes_;
  SharedPages pages_;
  std::uint64_t signals_reserved_ = 0;  // bytes; beyond any place once it is the whole ring
  bool slots_reserved_ = false;
};

}  // namespace hmc::shm
