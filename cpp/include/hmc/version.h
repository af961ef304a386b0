// Versions of the library and of the wire.
#pragma once

#include <cstdint>
#include <string_view>

#include "hmc/export.h"

namespace hmc {

// "0.1.0", from the package metadata at build.
HMC_API std::string_view version() noexcept;
// Peers must agree on this number; a mismatch is refused by name at the handshake.
inline constexpr std::uint16_t wire_version = 9;

}  // namespace hmc
