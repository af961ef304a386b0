// Unguessable bytes from the kernel.
#pragma once

#include <cstddef>

#include <cstdint>
#include <span>

namespace hmc {

// getrandom(2), of which each thread keeps some for short requests. Where the kernel gives none, the program ends.
void random_bytes(std::span<std::byte> out);
std::uint64_t random_u64();

}  // namespace hmc
