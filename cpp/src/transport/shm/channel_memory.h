// Mapped channels: the memfd of a ring, made here or received from a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/blob.h"
#include "base/fd.h"
#include "hmc/status.h"
#include "transport/host_mapping.h"
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
  [[nodiscard]] Control& control() const noexcept { return *reinterpret_cast<Control*>(mapping_.data()); }
  [[nodiscard]] std::byte* signals() const noexcept { return mapping_.data() + control_bytes; }
  [[nodiscard]] std::byte* slot(std::uint64_t number) const noexcept {
    return mapping_.data() + control_bytes + sizes_.signal_bytes + (number % slot_count) * sizes_.slot_bytes;
  }
  [[nodiscard]] const UniqueFd& fd() const noexcept { return fd_; }
  void drop_fd() noexcept { fd_.reset(); }

  // The producer reserves the pages of a ring at its first use: afterwards a store cannot fail for want of memory.
  // Errors: out_of_memory.
  Status reserve_signals();
  Status reserve_slots();

 private:
  Status reserve(std::size_t offset, std::size_t bytes);

  Sizes sizes_;
  UniqueFd fd_;
  Mapping mapping_;
  bool signals_reserved_ = false;
  bool slots_reserved_ = false;
};

}  // namespace hmc::shm
