// A rank's share of a collective that kernels on the devices of all ranks carry out together. Each rank has a segment of device
// memory, which the devices of all ranks map; what lies where in it is said here and in kernels/mapped_memory.cu.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/reduce.h"

namespace hmc {

inline constexpr std::uint32_t most_exchange_ranks = 8;
inline constexpr std::uint32_t most_exchange_blocks = 132;  // groups of threads of one kernel

// What lies in a segment, for a group of `ranks`: flags, cells of small calls, slots for chunks.
struct ExchangeSegment {
  std::uint64_t cells_at = 0;
  std::uint64_t cells = 0;  // bytes for the input of one rank in one call
  std::uint64_t slots_at = 0;
  std::uint64_t slot = 0;  // bytes
  std::uint64_t bytes = 0;
};
[[nodiscard]] ExchangeSegment exchange_segment(std::uint32_t ranks) noexcept;
// The largest input that passes through cells.
[[nodiscard]] std::uint64_t most_cell_bytes(std::uint32_t ranks) noexcept;

// Alike on all ranks.
struct ExchangeShape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 1;
  std::uint64_t steps = 0;  // chunks of each block; 0: the call passes through cells
  std::uint64_t chunk = 0;  // bytes
  std::uint64_t lag = 0;    // rounds between what is done with a chunk
};
// Steps of what takes more than one, at least: fewer do not overlap what the links, the memory and the arithmetic do.
inline constexpr std::uint64_t least_exchange_steps = 3;
// For a call whose largest part has that many bytes. `cells`: it has no collectors, so it may pass through cells.
[[nodiscard]] ExchangeShape exchange_shape(std::uint64_t bytes, std::uint32_t ranks, bool cells,
                                           std::uint64_t least_steps = least_exchange_steps) noexcept;

struct ExchangePart {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What this rank reduces of a call, and for whom.
struct ExchangeReduced {
  std::uint32_t sources = 0;  // ranks whose inputs are reduced, from `source` on; 0: none, the bytes are handed on
  std::uint32_t source = 0;
  ExchangePart own;    // of the input
  bool keeps = false;  // its output gets the result, at `kept_at`
  std::uint64_t kept_at = 0;
  std::uint32_t collectors = 0;  // bit r: rank r gets the results of all, and takes those of each
};

struct ExchangeCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::uint32_t rank = 0, ranks = 0;
  std::array<void*, most_exchange_ranks> segments = {};      // by rank, as this rank's device maps them
  std::array<ExchangePart, most_exchange_ranks> gives = {};  // of the input: what each rank gets of it
  std::array<ExchangePart, most_exchange_ranks> takes = {};  // of the output: what comes of each rank
  ExchangeReduced reduced;
  ExchangeShape shape;
  std::uint64_t first = 0;  // the number of the call's first round: follows on that of the group's last one
  std::uint32_t shot = 0;   // of a call through cells: one more than that of the last one
  ReduceStep reduction;
  const std::atomic<std::uint32_t>* ended = nullptr;  // not 0: kernels end soon, whatever they have done
};

// Of a call that passes through chunks.
[[nodiscard]] std::uint64_t exchange_rounds(const ExchangeCall& call) noexcept;

}  // namespace hmc
