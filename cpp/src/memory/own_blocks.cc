#include "memory/own_blocks.h"

#include <cstdint>
#include <map>
#include <mutex>

#include "memory/block.h"

namespace hmc {
namespace {

struct Known {
  std::mutex mutex;
  std::map<std::uintptr_t, std::weak_ptr<MemoryBlock>> by_address;
};

// Never destroyed: memory of static objects may end after it.
Known& known() {
  static auto* const blocks = new Known;
  return *blocks;
}

std::uintptr_t start_of(const MemoryBlock& block) { return reinterpret_cast<std::uintptr_t>(block.span().data); }

}  // namespace

void add_own_block(const std::shared_ptr<MemoryBlock>& block) {
  const std::scoped_lock lock(known().mutex);
  known().by_address[start_of(*block)] = block;
}

void remove_own_block(const MemoryBlock& block) {
  const std::scoped_lock lock(known().mutex);
  known().by_address.erase(start_of(block));
}

std::shared_ptr<MemoryBlock> own_block_of(const void* data, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  std::shared_ptr<MemoryBlock> found;  // ends, if it is the last owner, without the lock
  const std::scoped_lock lock(known().mutex);
  auto next = known().by_address.upper_bound(first);
  if (next == known().by_address.begin()) return nullptr;
  found = std::prev(next)->second.lock();
  if (!found) return nullptr;
  const std::size_t at = first - start_of(*found);
  const std::size_t size = found->span().bytes;
  return at <= size && bytes <= size - at ? found : nullptr;
}

}  // namespace hmc
