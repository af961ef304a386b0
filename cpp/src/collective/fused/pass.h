// Pass: one rank's share of an all_reduce, reduce_scatter or reduce among ranks of one host, in one pass over shared slots.
//
// Each rank reduces one part of the arrays, chunk by chunk: from its own input, and from what the others copy into their slots.
// Others collect the result from its slots. Every array is read and written once, the rest stays in the caches. In rank order, as
// every reduction of HMC. Large outputs are written around the caches: there a line is read before it is written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collective/areas.h"
#include "collective/fused/passing.h"
#include "collective/parts.h"
#include "transport/copy.h"

namespace hmc::fused {

// What every rank knows alike, but for `keeps_at`.
struct Plan {
  std::vector<Part> parts;            // of the input, by the rank that reduces it
  bool all_collect = false;           // every rank wants all parts
  std::optional<std::uint32_t> root;  // only this one does. Neither: each rank wants its own part
  std::uint64_t keeps_at = 0;         // where in the rank's output its own part goes, if it wants it
};

// Equal parts of whole elements for each of `size` ranks.
std::shared_ptr<const Plan> plan_all_reduce(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes, std::size_t element);
std::shared_ptr<const Plan> plan_reduce(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes,
                                        std::size_t element);
std::shared_ptr<const Plan> plan_reduce_scatter(const BlockLayout& blocks);

class Pass final : public Passing {
 public:
  // CPU memory.
  Pass(const Slots& slots, std::uint32_t rank, std::shared_ptr<const Plan> plan, const CollectiveBuffers& buffers,
       std::uint64_t first);

  [[nodiscard]] bool can_advance() override { return can_publish() || can_reduce() || can_collect(); }
  [[nodiscard]] bool needs(std::uint32_t rank) const noexcept override;

 private:
  std::size_t step() override;
  [[nodiscard]] Part piece(std::uint32_t owner, std::uint64_t number) const noexcept;
  [[nodiscard]] bool collects(std::uint32_t rank) const noexcept { return plan_->all_collect || plan_->root == rank; }
  [[nodiscard]] std::byte* output(std::uint64_t offset) const noexcept { return static_cast<std::byte*>(out_) + offset; }
  [[nodiscard]] bool can_publish();
  [[nodiscard]] bool can_reduce();
  [[nodiscard]] bool can_collect();
  // Where in the output this rank's own piece goes.
  [[nodiscard]] std::uint64_t kept_at(const Part& own) const noexcept;
  void write_output(std::uint64_t offset, const std::byte* from, std::size_t bytes) noexcept;
  std::size_t publish();
  std::size_t reduce();
  std::size_t collect();

  const std::shared_ptr<const Plan> plan_;
  const std::byte* const in_;
  void* const out_;
  const CopyKind kind_;  // of copies into the output
  const ReduceStep step_;
  std::vector<const void*> sources_;
};

}  // namespace hmc::fused
