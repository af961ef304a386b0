#include "memory/own_blocks.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/fork.h"
#include "memory/block.h"

namespace hmc {
namespace {

struct Known {
  std::mutex mutex;
  std::map<std::uintptr_t, std::weak_ptr<MemoryBlock>> by_address;
  const std::uint32_t epoch = fork_epoch();
};

// Never destroyed: memory of static objects may end after it. A forked child has its own: another thread may have held the lock.
Known& known() {
  static std::atomic<Known*> current{new Known};
  Known* found = current.load();
  if (found->epoch == fork_epoch()) return *found;
  auto made = std::make_unique<Known>();
  return current.compare_exchange_strong(found, made.get()) ? *made.release() : *found;
}

std::uintptr_t start_of(const MemoryBlock& block) { return reinterpret_cast<std::uintptr_t>(block.span().data); }

}  // namespace

void add_own_block(const std::shared_ptr<MemoryBlock>& block) {
  Known& all = known();
  const std::scoped_lock lock(all.mutex);
  all.by_address[start_of(*block)] = block;
}

void remove_own_block(const MemoryBlock& block) {
  Known& all = known();
  const std::scoped_lock lock(all.mutex);
  all.by_address.erase(start_of(block));
}

std::shared_ptr<MemoryBlock> own_block_of(const void* data, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  std::shared_ptr<MemoryBlock> found;  // ends, if it is the last owner, without the lock
  Known& all = known();
  const std::scoped_lock lock(all.mutex);
  auto next = all.by_address.upper_bound(first);
  if (next == all.by_address.begin()) return nullptr;
  found = std::prev(next)->second.lock();
  if (!found) return nullptr;
  const std::size_t at = first - start_of(*found);
  const std::size_t size = found->span().bytes;
  return at <= size && bytes <= size - at ? found : nullptr;
}

}  // namespace hmc
