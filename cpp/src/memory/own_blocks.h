// Blocks that peers on the host can map, by address: memory that comes back as a plain address is found to be HMC's again.
#pragma once

#include <cstddef>
#include <memory>

namespace hmc {

class MemoryBlock;

// Makes a shareable block of CPU memory known until it ends. Any thread.
void add_own_block(const std::shared_ptr<MemoryBlock>& block);
void remove_own_block(const MemoryBlock& block);
// The block that has all of [data, data + bytes), if there is one. Any thread.
[[nodiscard]] std::shared_ptr<MemoryBlock> own_block_of(const void* data, std::size_t bytes);

}  // namespace hmc
