// Where a client comes from, and who gives way where the places for clients that have proven nothing are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "progress/address.h"

namespace hmc {

// The process at the other end of a Unix socket, or a network address (of IPv6 its first 64 bits, which one host has to itself).
// Equal for equal origins; others differ but for chance.
using Source = std::uint64_t;

Source source_of_process(int unix_socket) noexcept;
Source source_of_address(const SocketAddress& remote) noexcept;

// Index of the client to discard: a random one of the source that has the most. So a flood from one source costs no other its
// place; a client that shares the source of a flood stays with some probability, whatever the flood's pace. `clients` is not empty.
std::size_t choose_discarded(std::span<const Source> clients);

}  // namespace hmc
