// Passing: one rank's share of a fused call that goes in chunks through shared slots.
//
// Its counters are the Board's: how many chunks the rank has published, has read of what others published, and has collected.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/fused/slots.h"

namespace hmc::fused {

// One thread at a time. The memory belongs to the call until done() or its destruction: no other process touches it.
class Passing {
 public:
  // `first`: the number of the call's first chunk; `chunks`: how many there are, alike at every rank.
  Passing(const Slots& slots, std::uint32_t rank, std::uint64_t first, std::uint64_t chunks)
      : slots_(slots),
        rank_(rank),
        first_(first),
        end_(first + chunks),
        published_(first),
        reduced_(first),
        collected_(first),
        seen_(slots.ranks()) {}
  Passing(const Passing&) = delete;
  Passing& operator=(const Passing&) = delete;
  virtual ~Passing() = default;

  // Whether advance() would do anything.
  [[nodiscard]] virtual bool can_advance() = 0;
  // Whether it waits, or will, for what `rank` has not done yet.
  [[nodiscard]] virtual bool needs(std::uint32_t rank) const noexcept = 0;
  // Does what can be done, about `budget` bytes at most. True if anything was.
  bool advance(std::size_t budget) {
    std::size_t total = 0;
    bool any = false;
    for (bool moved = true; moved && total < budget && !done();) {
      const std::uint64_t before = published_ + reduced_ + collected_;
      total += step();
      moved = published_ + reduced_ + collected_ != before;
      any = any || moved;
    }
    return any;
  }
  [[nodiscard]] bool done() const noexcept { return published_ == end_ && reduced_ == end_ && collected_ == end_; }
  // The number of the first chunk after this call.
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }
  // From other ranks' slots, so far.
  [[nodiscard]] std::uint64_t bytes_taken() const noexcept { return taken_; }

 protected:
  // How far another rank was when last looked at, which spares a look at a line that it is writing.
  struct Seen {
    std::uint64_t published = 0, reduced = 0, collected = 0;
  };
  using Counter = std::atomic<std::uint64_t> Board::*;
  using SeenCounter = std::uint64_t Seen::*;
  // Each thing that can be done, once. Returns bytes.
  virtual std::size_t step() = 0;
  [[nodiscard]] bool reached(std::uint32_t rank, Counter counter, SeenCounter seen, std::uint64_t number) {
    std::uint64_t& last = seen_[rank].*seen;
    if (last < number) last = (slots_.board(rank).*counter).load(std::memory_order_seq_cst);
    return last >= number;
  }
  // By every other rank.
  [[nodiscard]] bool all_reached(Counter counter, SeenCounter seen, std::uint64_t number) {
    for (std::uint32_t r = 0; r < slots_.ranks(); ++r) {
      if (r != rank_ && !reached(r, counter, seen, number)) return false;
    }
    return true;
  }

  const Slots slots_;
  const std::uint32_t rank_;
  const std::uint64_t first_, end_;
  std::uint64_t published_, reduced_, collected_;
  std::uint64_t taken_ = 0;

 private:
  std::vector<Seen> seen_;
};

}  // namespace hmc::fused
