// Device memory: the registry of allocations, and pinned ranges of the host.
#include "memory.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "registry.h"
#include "streams.h"

namespace hmc::sim {
namespace {

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// MADV_POPULATE_READ, which the C library's headers may not know.
constexpr int populate_read = 22;

// Whether the host can read all of it; a kernel before 5.14 is only asked whether it is mapped.
bool readable(std::uintptr_t address, std::size_t bytes) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  static const char here = 0;
  static const bool can_populate =
      madvise(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(&here) / page * page), page, populate_read) == 0;
  const std::uintptr_t start = address / page * page;
  const std::size_t length = whole_pages(bytes + (address - start));
  if (can_populate) return madvise(reinterpret_cast<void*>(start), length, populate_read) == 0;
  std::vector<unsigned char> resident(length / page);
  return mincore(reinterpret_cast<void*>(start), length, resident.data()) == 0;
}

std::size_t extent(const AllocationRef& allocation) { return allocation->mapped; }
std::size_t extent(const PinnedRange& range) { return range.bytes; }

// The entry of a map from base address that covers `address`, or end().
template <class Map>
auto covering(Map& map, std::uintptr_t address) {
  auto found = map.upper_bound(address);
  if (found == map.begin()) return map.end();
  --found;
  return address - found->first < extent(found->second) ? found : map.end();
}

}  // namespace

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

std::uint64_t random_number() {
  std::uint64_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) {
    value = (static_cast<std::uint64_t>(getpid()) << 40) ^ next_id();
  }
  return value;
}

Registry& registry() {
  static Registry& instance = *new Registry;  // never destroyed: streams' threads may outlive main()
  return instance;
}

AllocationRef Registry::find(std::uintptr_t address) {
  const auto found = covering(allocations, address);
  return found == allocations.end() ? nullptr : found->second;
}

std::shared_ptr<Allocation> Allocation::map(int fd, std::size_t bytes, int device, std::uint64_t nonce, bool imported) {
  std::shared_ptr<Allocation> made(new Allocation);
  made->fd = fd;
  made->bytes = bytes;
  made->device = device;
  made->id = next_id();
  made->nonce = nonce;
  made->imported = imported;
  const std::size_t mapped = whole_pages(bytes);
  void* alias = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (alias == MAP_FAILED) return nullptr;
  made->alias = static_cast<std::byte*>(alias);
  made->mapped = mapped;
  void* address = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return nullptr;
  made->address = reinterpret_cast<std::uintptr_t>(address);
  return made;
}

Allocation::~Allocation() {
  if (reservation != nullptr) return;  // which has the addresses back, and the piece its descriptor
  if (address != 0) munmap(reinterpret_cast<void*>(address), mapped);
  if (alias != nullptr) munmap(alias, mapped);
  if (fd >= 0) close(fd);
}

AllocationRef find_allocation(const void* pointer) {
  const std::lock_guard lock(registry().mutex);
  return registry().find(reinterpret_cast<std::uintptr_t>(pointer));
}

PointerView look_up(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const AllocationRef found = all.find(address)) {
    return {PointerView::Kind::device,
            found->device,
            found->address,
            found->bytes,
            found->id,
            found->imported,
            found->exportable && !found->imported};
  }
  if (const auto found = covering(all.pinned, address); found != all.pinned.end()) {
    return {PointerView::Kind::pinned, found->second.device, found->first, found->second.bytes, found->second.id, false, false};
  }
  return {};
}

Error allocate(int device, std::size_t bytes, void** address, bool exportable) {
  if (address == nullptr || bytes == 0) return Error::invalid_value;
  if (!device_exists(device)) return Error::invalid_device;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::atomic<std::size_t>& used = all.used_by(device);
  if (bytes > device_memory() || whole_pages(bytes) > device_memory() - used) return Error::out_of_memory;
  const std::uint64_t nonce = random_number();
  const int fd = make_memory_file(nonce, bytes, device);
  if (fd < 0) return Error::out_of_memory;
  const AllocationRef made = Allocation::map(fd, bytes, device, nonce, false);
  if (!made) return Error::out_of_memory;
  made->exportable = exportable;
  used += made->mapped;
  all.allocations.emplace(made->address, made);
  *address = reinterpret_cast<void*>(made->address);
  return Error::ok;
}

Error release(void* address) {
  const AllocationRef found = find_allocation(address);
  if (!found || found->imported || found->reservation || found->address != reinterpret_cast<std::uintptr_t>(address)) {
    return Error::invalid_value;
  }
  static_cast<void>(synchronize_device(found->device));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.allocations.erase(found->address) == 0) return Error::invalid_value;  // another thread freed it meanwhile
  all.used_by(found->device) -= found->mapped;
  return Error::ok;
}

void release_all(int device) {
  static_cast<void>(synchronize_device(device));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.allocations, [&](const auto& entry) {
    const Allocation& one = *entry.second;
    if (one.device != device || one.reservation != nullptr) return false;  // virtual memory is no context's
    if (!one.imported) all.used_by(device) -= one.mapped;
    return true;
  });
}

Error memory_info(int device, std::size_t* free_bytes, std::size_t* total_bytes) {
  if (free_bytes == nullptr || total_bytes == nullptr) return Error::invalid_value;
  if (!device_exists(device)) return Error::invalid_device;
  const std::lock_guard lock(registry().mutex);
  *total_bytes = device_memory();
  *free_bytes = device_memory() - registry().used_by(device);
  return Error::ok;
}

Error allocate_host(std::size_t bytes, int device, void** address) {
  if (address == nullptr || bytes == 0) return Error::invalid_value;
  if (bytes > SIZE_MAX / 2) return Error::out_of_memory;
  void* made = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return Error::out_of_memory;
  const std::lock_guard lock(registry().mutex);
  registry().pinned.emplace(reinterpret_cast<std::uintptr_t>(made), PinnedRange{bytes, device, next_id(), true});
  *address = made;
  return Error::ok;
}

Error pin(void* address, std::size_t bytes, int device) {
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  if (address == nullptr || bytes == 0 || bytes > UINTPTR_MAX - start || !readable(start, bytes)) return Error::invalid_value;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.find(start) != nullptr) return Error::invalid_value;
  const auto next = all.pinned.lower_bound(start);
  if (covering(all.pinned, start) != all.pinned.end() || (next != all.pinned.end() && next->first - start < bytes)) {
    return Error::already_registered;
  }
  all.pinned.emplace(start, PinnedRange{bytes, device, next_id(), false});
  return Error::ok;
}

// Takes the range that begins at `address` out of the registry once no stream can be using it.
static Error forget_pinned(void* address, bool owned, Error otherwise, std::size_t* bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  const PointerView view = look_up(address);
  if (view.kind != PointerView::Kind::pinned || view.base != start) return otherwise;
  for (int device = 0; device < device_count(); ++device) static_cast<void>(synchronize_device(device));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.pinned.find(start);
  if (found == all.pinned.end() || found->second.owned != owned) return otherwise;
  *bytes = found->second.bytes;
  all.pinned.erase(found);
  return Error::ok;
}

Error release_host(void* address) {
  std::size_t bytes = 0;
  const Error error = forget_pinned(address, true, Error::invalid_value, &bytes);
  if (error == Error::ok) munmap(address, whole_pages(bytes));
  return error;
}

Error unpin(void* address) {
  std::size_t bytes = 0;
  return forget_pinned(address, false, Error::not_registered, &bytes);
}

}  // namespace hmc::sim
