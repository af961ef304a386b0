#include "collective/fused/segment.h"

#include <utility>

namespace hmc::fused {

Result<std::shared_ptr<Segment>> Segment::create(std::uint32_t ranks) {
  HMC_ASSIGN(SharedPages pages, SharedPages::create("hmc-group", Slots::bytes_for(ranks)));
  // The boards are written without a look at what memory is left.
  HMC_TRY(pages.reserve(0, ranks * board_bytes));
  return std::shared_ptr<Segment>(new Segment(std::move(pages), ranks));
}

Result<std::shared_ptr<Segment>> Segment::attach(UniqueFd fd, std::uint32_t ranks) {
  HMC_ASSIGN(SharedPages pages, SharedPages::attach(std::move(fd), "hmc-group", Slots::bytes_for(ranks)));
  return std::shared_ptr<Segment>(new Segment(std::move(pages), ranks));
}

Status Segment::reserve(std::uint32_t rank) const {
  return pages_.reserve(static_cast<std::size_t>(slots_.area(rank) - pages_.data()), rank_bytes);
}

}  // namespace hmc::fused
