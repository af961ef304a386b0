// Which port here and which port there a connection goes between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/verbs/wire.h"

namespace hmc::verbs {

struct Pairing {
  std::size_t own = 0;     // index into the own ports
  std::uint64_t rate = 0;  // of the slower of the two, bytes per second
};

// The fastest pair that speaks the same network; among equals the one that the routing table leads to. Each side chooses its own
// port and learns the other's from its address, so the two need not come to the same pair.
[[nodiscard]] std::optional<Pairing> choose_ports(std::span<const PortInfo> own, std::span<const PortInfo> theirs);

}  // namespace hmc::verbs
