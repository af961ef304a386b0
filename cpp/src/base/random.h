// Unguessable bytes from the kernel.
#pragma once

#include <cstddef>

#include <cstdint>
#include <span>

namespace hmc {

void random_bytes(std::span<std::byte> out);  // getrandom(2); never fails after boot
std::uint64_t random_u64();

}  // namespace hmc
