// Segment: the memory of a group's Slots, made by one process and mapped by all.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "collective/fused/slots.h"
#include "hmc/status.h"
#include "transport/shared_pages.h"

namespace hmc::fused {

class Segment {
 public:
  // Sealed, no page of it used yet. `ranks`: 2 to max_ranks.
  static Result<std::shared_ptr<Segment>> create(std::uint32_t ranks);
  // Another process's. Errors: protocol when it is not what it should be.
  static Result<std::shared_ptr<Segment>> attach(UniqueFd fd, std::uint32_t ranks);

  [[nodiscard]] const Slots& slots() const noexcept { return slots_; }
  [[nodiscard]] const UniqueFd& fd() const noexcept { return pages_.fd(); }
  // Takes the pages of `rank`'s slots: afterwards a store there cannot fail for want of memory. Errors: out_of_memory.
  [[nodiscard]] Status reserve(std::uint32_t rank) const;

 private:
  Segment(SharedPages pages, std::uint32_t ranks) noexcept : pages_(std::move(pages)), slots_(pages_.data(), ranks) {}

  SharedPages pages_;
  Slots slots_;
};

}  // namespace hmc::fused
