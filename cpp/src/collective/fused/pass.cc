#include "collective/fused/pass.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hmc::fused {
namespace {

std::uint64_t chunks_of(const Plan& plan, std::uint64_t chunk) noexcept {
  std::uint64_t most = 0;
  for (const Part& part : plan.parts) most = std::max(most, part.bytes);
  return most / chunk + (most % chunk != 0 ? 1 : 0);
}

}  // namespace

std::shared_ptr<const Plan> plan_all_reduce(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes, std::size_t element) {
  auto plan = std::make_shared<Plan>();
  plan->parts = equal_parts(size, bytes, element);
  plan->all_collect = true;
  plan->keeps_at = plan->parts[rank].offset;
  return plan;
}

std::shared_ptr<const Plan> plan_reduce(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes,
                                        std::size_t element) {
  auto plan = std::make_shared<Plan>();
  plan->parts = equal_parts(size, bytes, element);
  plan->root = root;
  plan->keeps_at = plan->parts[rank].offset;
  return plan;
}

std::shared_ptr<const Plan> plan_reduce_scatter(const BlockLayout& blocks) {
  auto plan = std::make_shared<Plan>();
  for (std::size_t r = 0; r < blocks.counts.size(); ++r) plan->parts.push_back({blocks.displacements[r], blocks.counts[r]});
  return plan;
}

Pass::Pass(const Slots& slots, std::uint32_t rank, std::shared_ptr<const Plan> plan, const CollectiveBuffers& buffers,
           std::uint64_t first)
    : Passing(slots, rank, first, chunks_of(*plan, slots.chunk())),
      plan_(std::move(plan)),
      in_(static_cast<const std::byte*>(buffers.in.data)),
      out_(buffers.out.data),
      kind_(out_ == in_ ? CopyKind::cached : copy_kind_for(buffers.out.bytes)),
      step_(buffers.reduction),
      sources_(slots.ranks()) {}

std::size_t Pass::step() {
  const std::size_t published = publish(), reduced = reduce();
  return published + reduced + collect();
}

bool Pass::needs(std::uint32_t rank) const noexcept {
  if (done() || rank == rank_) return false;
  const Board& board = slots_.board(rank);
  return board.published.load(std::memory_order_seq_cst) < end_ || board.reduced.load(std::memory_order_seq_cst) < end_;
}

Part Pass::piece(std::uint32_t owner, std::uint64_t number) const noexcept {
  const Part& part = plan_->parts[owner];
  const std::uint64_t begin = std::min(part.bytes, (number - first_) * slots_.chunk());
  return {part.offset + begin, std::min<std::uint64_t>(slots_.chunk(), part.bytes - begin)};
}

// Into slots whose last chunk has been reduced everywhere.
bool Pass::can_publish() {
  return published_ < end_ && (published_ < depth || all_reached(&Board::reduced, &Seen::reduced, published_ - depth + 1));
}

// Into a slot whose last result has been collected everywhere.
bool Pass::can_reduce() {
  return reduced_ < end_ && all_reached(&Board::published, &Seen::published, reduced_ + 1) &&
         (reduced_ < depth || all_reached(&Board::collected, &Seen::collected, reduced_ - depth + 1));
}

bool Pass::can_collect() {
  return collected_ < reduced_ && collects(rank_) && all_reached(&Board::reduced, &Seen::reduced, collected_ + 1);
}

std::uint64_t Pass::kept_at(const Part& own) const noexcept { return plan_->keeps_at + (own.offset - plan_->parts[rank_].offset); }

void Pass::write_output(std::uint64_t offset, const std::byte* from, std::size_t bytes) noexcept {
  copy_bytes(output(offset), from, bytes, kind_);
}

std::size_t Pass::publish() {
  if (!can_publish()) return 0;
  std::size_t bytes = 0;
  for (std::uint32_t owner = 0; owner < slots_.ranks(); ++owner) {
    const Part from = piece(owner, published_);
    if (owner == rank_ || from.bytes == 0) continue;
    std::memcpy(slots_.input(rank_, published_, owner), in_ + from.offset, from.bytes);
    bytes += from.bytes;
  }
  slots_.board(rank_).published.store(++published_, std::memory_order_seq_cst);
  return bytes;
}

// Other ranks never read this rank's input of its own part, so the result of a call in place may overwrite it.
std::size_t Pass::reduce() {
  if (!can_reduce()) return 0;
  const Part own = piece(rank_, reduced_);
  std::byte* const result = slots_.result(rank_, reduced_);
  if (own.bytes > 0) {
    for (std::uint32_t r = 0; r < slots_.ranks(); ++r)
      sources_[r] = r == rank_ ? in_ + own.offset : slots_.input(r, reduced_, rank_);
    // Straight to the output if no other rank collects it.
    std::byte* const to = !plan_->all_collect && (!plan_->root || plan_->root == rank_) ? output(kept_at(own)) : result;
    reduce_on_cpu(to, sources_, own.bytes / size_of(step_.type), step_);
  }
  taken_ += own.bytes * (slots_.ranks() - 1);
  Board& board = slots_.board(rank_);
  board.reduced.store(++reduced_, std::memory_order_seq_cst);
  // The others need not wait for this: the slot is written again once this rank, too, has collected the chunk.
  if (plan_->all_collect && own.bytes > 0) {
    write_output(kept_at(own), result, own.bytes);
    copy_fence(kind_);
  }
  if (!collects(rank_)) board.collected.store(++collected_, std::memory_order_seq_cst);
  return own.bytes * slots_.ranks();
}

std::size_t Pass::collect() {
  if (!can_collect()) return 0;
  std::size_t bytes = 0;
  for (std::uint32_t owner = 0; owner < slots_.ranks(); ++owner) {
    const Part to = piece(owner, collected_);
    if (owner == rank_ || to.bytes == 0) continue;
    write_output(to.offset, slots_.result(owner, collected_), to.bytes);
    bytes += to.bytes;
  }
  copy_fence(kind_);
  taken_ += bytes;
  slots_.board(rank_).collected.store(++collected_, std::memory_order_seq_cst);
  return bytes;
}

}  // namespace hmc::fused
