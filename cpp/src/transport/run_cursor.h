// RunCursor: a position in the blocks of a put or get, for transports that move them piece by piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hmc/status.h"
#include "transport/transport.h"

namespace hmc {

// Part of one block: contiguous on both sides.
struct RunPiece {
  const Run* run;
  std::uint64_t local_offset;
  std::uint64_t remote_offset;
  std::size_t bytes;
};

// Borrows the runs: they outlive the operation by the SPI. A plain value: a copy is a second position.
class RunCursor {
 public:
  RunCursor() noexcept = default;
  explicit RunCursor(std::span<const Run> runs) noexcept : runs_(runs) { settle(); }

  [[nodiscard]] bool at_end() const noexcept { return run_ == runs_.size(); }
  [[nodiscard]] const Run& run() const noexcept { return runs_[run_]; }
  [[nodiscard]] std::size_t block_index() const noexcept { return block_; }
  [[nodiscard]] bool at_block_start() const noexcept { return done_ == 0; }

  // What lies at the position, at most `limit` bytes of it. Not at the end.
  [[nodiscard]] RunPiece peek(std::size_t limit) const noexcept {
    const Run& run = runs_[run_];
    return {&run, run.local_offsets[block_] + done_, run.remote_offsets[block_] + done_, std::min(limit, run.block - done_)};
  }
  // Moves on by `bytes`, at most what is left of the block.
  void advance(std::size_t bytes) noexcept {
    done_ += bytes;
    if (done_ == runs_[run_].block) {
      done_ = 0;
      ++block_;
      settle();
    }
  }
  // Moves on by whole blocks of the current run, from a block's start.
  void advance_blocks(std::size_t count) noexcept {
    block_ += count;
    settle();
  }

 private:
  void settle() noexcept {
    while (run_ < runs_.size() && (block_ >= runs_[run_].count || runs_[run_].block == 0)) {
      ++run_;
      block_ = 0;
    }
  }

  std::span<const Run> runs_;
  std::size_t run_ = 0;
  std::size_t block_ = 0;
  std::size_t done_ = 0;  // bytes of the current block already passed
};

// The first of the offsets that is greater than `last`; `count` when none is.
std::size_t first_beyond(const std::uint64_t* offsets, std::size_t count, std::uint64_t last) noexcept;

// Every block inside both regions? Returns the sum of bytes, or invalid_argument naming the first block that is not.
Result<std::size_t> check_runs(std::span<const Run> runs);

}  // namespace hmc
