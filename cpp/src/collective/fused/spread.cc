#include "collective/fused/spread.h"

#include <algorithm>
#include <cstring>

namespace hmc::fused {
namespace {

std::uint64_t chunks_of(const Slots& slots, const SpreadPlan& plan) noexcept {
  const std::uint64_t chunk = spread_chunk(slots, plan.to_all);
  return plan.longest / chunk + (plan.longest % chunk != 0 ? 1 : 0);
}

}  // namespace

Spread::Spread(const Slots& slots, std::uint32_t rank, const SpreadPlan& plan, const CollectiveBuffers& buffers,
               std::uint64_t first)
    : Passing(slots, rank, first, chunks_of(slots, plan)),
      plan_(plan),
      in_(given_by(buffers)),
      out_(static_cast<std::byte*>(buffers.out.data)),
      kind_(copy_kind_for(buffers.out.bytes)) {}

std::size_t Spread::chunk() const noexcept { return spread_chunk(slots_, plan_.to_all); }

Part Spread::piece(const Part& block, std::uint64_t number) const noexcept {
  const std::uint64_t begin = std::min(block.bytes, (number - first_) * chunk());
  return {block.offset + begin, std::min<std::uint64_t>(chunk(), block.bytes - begin)};
}

std::byte* Spread::slot(std::uint32_t from, std::uint64_t number, std::uint32_t to) const noexcept {
  return slots_.input(from, number, plan_.to_all ? 0 : to);
}

bool Spread::needs(std::uint32_t rank) const noexcept {
  if (done() || rank == rank_) return false;
  const Board& board = slots_.board(rank);
  const std::uint64_t published = board.published.load(std::memory_order_seq_cst);
  if (reduced_ < end_ && published < (plan_.taken_from(rank).bytes > 0 ? end_ : first_ + 1)) return true;
  return published_ < end_ && board.collected.load(std::memory_order_seq_cst) < end_;
}

// Into slots that every rank has read, for whatever was there.
bool Spread::can_publish() {
  return published_ < end_ && (published_ < depth || all_reached(&Board::collected, &Seen::collected, published_ - depth + 1));
}

// Not to the end before every rank has begun, that is, has seen this rank's announcement: the next one takes its place.
bool Spread::can_take() {
  if (reduced_ == end_) return false;
  for (std::uint32_t r = 0; r < slots_.ranks(); ++r) {
    if (r == rank_) continue;
    const std::uint64_t awaited = plan_.taken_from(r).bytes > 0 ? reduced_ + 1 : reduced_ + 1 == end_ ? first_ + 1 : first_;
    if (!reached(r, &Board::published, &Seen::published, awaited)) return false;
  }
  return true;
}

std::size_t Spread::step() {
  const std::size_t published = publish();
  return published + take();
}

std::size_t Spread::publish() {
  if (plan_.gives.bytes == 0) {
    // Nobody reads a slot of this rank.
    if (published_ < end_) slots_.board(rank_).published.store(published_ = end_, std::memory_order_seq_cst);
    return 0;
  }
  if (!can_publish()) return 0;
  std::size_t bytes = 0;
  for (std::uint32_t r = 0; r < slots_.ranks(); ++r) {
    if (r == rank_ && !plan_.to_all) continue;
    const Part from = piece(plan_.given_to(r), published_);
    if (from.bytes > 0) std::memcpy(slot(rank_, published_, r), in_ + from.offset, from.bytes);
    bytes += from.bytes;
    if (plan_.to_all) break;
  }
  slots_.board(rank_).published.store(++published_, std::memory_order_seq_cst);
  return bytes;
}

std::size_t Spread::copy(const Part& to, const std::byte* from) noexcept {
  if (to.bytes > 0 && out_ + to.offset != from) copy_bytes(out_ + to.offset, from, to.bytes, kind_);
  return to.bytes;
}

std::size_t Spread::take() {
  if (!can_take()) return 0;
  std::size_t bytes = 0;
  for (std::uint32_t r = 0; r < slots_.ranks(); ++r) {
    const Part to = piece(plan_.taken_from(r), reduced_);
    if (r == rank_) {
      copy(to, in_ + piece(plan_.given_to(r), reduced_).offset);
    } else {
      bytes += copy(to, slot(r, reduced_, rank_));
    }
  }
  copy_fence(kind_);
  taken_ += bytes;
  Board& board = slots_.board(rank_);
  board.reduced.store(++reduced_, std::memory_order_seq_cst);
  board.collected.store(++collected_, std::memory_order_seq_cst);
  return bytes;
}

}  // namespace hmc::fused
