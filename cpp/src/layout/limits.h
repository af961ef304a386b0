// What a description may ask for at most. A description may come from a peer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hmc/layout.h"

namespace hmc {

inline constexpr std::size_t max_layout_text = std::size_t{1} << 17;  // two scales for each of 4096 layers take up to 15 bytes each
inline constexpr std::size_t max_layout_steps = 16;
// By LayoutAxis. Those of D keep the keys of the digest distinct.
inline constexpr std::array<std::uint64_t, layout_axes> max_layout_extents{4096, std::uint64_t{1} << 32, 65536, 65536, 2, 16384};
inline constexpr std::uint64_t max_layout_first = 1U << 20;
inline constexpr std::uint64_t max_layout_bytes = std::uint64_t{1} << 50;  // of a buffer
inline constexpr std::uint64_t max_layout_runs = std::uint64_t{1} << 26;
inline constexpr std::uint64_t max_move_tokens = std::uint64_t{1} << 32;

constexpr std::size_t index_of(LayoutAxis axis) noexcept { return static_cast<std::size_t>(axis); }

}  // namespace hmc
