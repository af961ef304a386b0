// Which ports here and which ports there the connections to a peer go between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/verbs/wire.h"

namespace hmc::verbs {

struct Pairing {
  std::size_t own = 0;     // index into the own ports
  std::size_t theirs = 0;  // and theirs
  std::uint64_t rate = 0;  // of the slower of the two, bytes per second
};

// At most `most` pairs that speak the same network, best first, no port in two of them: the fastest; among equals the one that the
// routing table leads to, then the one whose addresses have most in common, for cards of one subnet reach each other. Those that
// are much slower than the first are left out. Each side chooses for itself and learns the other's ports from its address, so the
// two need not come to the same pairs.
[[nodiscard]] std::vector<Pairing> choose_ports(std::span<const PortInfo> own, std::span<const PortInfo> theirs, std::size_t most);

}  // namespace hmc::verbs
