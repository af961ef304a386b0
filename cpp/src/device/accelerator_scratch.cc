#include "device/accelerator_scratch.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace hmc {
namespace {

constexpr std::size_t least_bytes = std::size_t{1} << 20;
constexpr std::size_t most_spare = 8;
constexpr std::size_t host_page = 4096;

}  // namespace

Result<AcceleratorScratch::Piece> AcceleratorScratch::take(int index, std::size_t bytes) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find_if(spare_, [&](const Piece& one) { return one.index == index && one.bytes >= bytes; });
    if (found != spare_.end()) {
      const Piece taken = *found;
      spare_.erase(found);
      return taken;
    }
  }
  VendorMemory& memory = *devices_.calls().memory;
  Piece made{.index = index, .bytes = std::bit_ceil(std::max(bytes, least_bytes))};
  if (const int code = memory.allocate(made.bytes, made.device); code != 0) {
    return devices_.failure("allocating " + std::to_string(made.bytes) + " bytes for a kernel's tables on " + devices_.name(index),
                            code);
  }
  made.host = static_cast<std::byte*>(std::aligned_alloc(host_page, made.bytes));
  if (made.host == nullptr) {
    devices_.release(index, {made.device});
    return Status(Code::out_of_memory, "no " + std::to_string(made.bytes) + " bytes of CPU memory for a kernel's tables");
  }
  made.is_pinned = memory.pin(made.host, made.bytes, false) == 0;
  return made;
}

// The smallest one goes first: a larger one serves all.
void AcceleratorScratch::give(const Piece& piece) {
  Piece freed;
  {
    const std::scoped_lock lock(mutex_);
    spare_.push_back(piece);
    if (spare_.size() <= most_spare) return;
    const auto smallest = std::ranges::min_element(spare_, {}, &Piece::bytes);
    freed = *smallest;
    spare_.erase(smallest);
  }
  std::shared_ptr<void> host(freed.host, [](void* pages) { std::free(pages); });
  if (freed.is_pinned) devices_.release(freed.index, {freed.host, ReleasedMemory::Kind::pinned, std::move(host)});
  devices_.release(freed.index, {freed.device});
}

}  // namespace hmc
