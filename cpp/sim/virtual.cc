// Virtual memory: what a framework's allocator builds its growing segments of.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "registry.h"

namespace hmc::sim {

// A piece of device memory, mapped or not.
class Physical {
 public:
  Physical(int memory, std::size_t size, std::uint64_t number, PhysicalView what, bool counted)
      : fd(memory), bytes(size), nonce(number), view(what), counted_(counted) {}
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical() {
    close(fd);
    if (counted_) registry().used_by(view.device) -= bytes;
  }

  const int fd;
  const std::size_t bytes;
  const std::uint64_t nonce;
  const PhysicalView view;

 private:
  const bool counted_;
};

// Addresses for the program, and as many for the copy engine: what lies side by side in one does in the other.
class Reservation {
 public:
  explicit Reservation(std::size_t size) : bytes(size), address_(reserve(size)), alias_(reserve(size)) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() {
    if (address_ != MAP_FAILED) munmap(address_, bytes);
    if (alias_ != MAP_FAILED) munmap(alias_, bytes);
  }
  [[nodiscard]] bool ok() const { return address_ != MAP_FAILED && alias_ != MAP_FAILED; }
  [[nodiscard]] std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(address_); }
  [[nodiscard]] std::byte* alias() const { return static_cast<std::byte*>(alias_); }

  const std::size_t bytes;

 private:
  static void* reserve(std::size_t size) {
    return mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  void* const address_;
  void* const alias_;
};

namespace {

bool granular(std::size_t bytes) { return bytes != 0 && bytes % virtual_granularity == 0; }

// The mappings that make up [address, address + bytes); empty when they do not. Under the registry's lock.
std::vector<AllocationRef> whole_mappings(Registry& all, std::uintptr_t address, std::size_t bytes) {
  std::vector<AllocationRef> found;
  for (std::size_t done = 0; done < bytes;) {
    const auto next = all.allocations.find(address + done);
    if (next == all.allocations.end() || next->second->reservation == nullptr || next->second->bytes > bytes - done) return {};
    done += next->second->bytes;
    found.push_back(next->second);
  }
  return found;
}

// One more handle of the piece. Under the registry's lock.
std::uint64_t hold(Registry& all, std::shared_ptr<Physical> piece) {
  for (auto& [handle, known] : all.physical) {
    if (known.piece != piece) continue;
    ++known.count;
    return handle;
  }
  const std::uint64_t handle = next_id();
  all.physical.emplace(handle, PhysicalHandle{std::move(piece), 1});
  return handle;
}

}  // namespace

Error create_physical(int device, std::size_t bytes, bool shareable, std::uint64_t* handle) {
  if (handle == nullptr || !granular(bytes)) return Error::invalid_value;
  if (!device_exists(device)) return Error::invalid_device;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (bytes > device_memory() || bytes > device_memory() - all.used_by(device)) return Error::out_of_memory;
  const std::uint64_t nonce = random_number();
  const int fd = make_memory_file(nonce, bytes, device);
  if (fd < 0) return Error::out_of_memory;
  all.used_by(device) += bytes;
  *handle = hold(all, std::make_shared<Physical>(fd, bytes, nonce, PhysicalView{device_pci_bus(device), device, shareable}, true));
  return Error::ok;
}

Error view_physical(std::uint64_t handle, PhysicalView* view) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.physical.find(handle);
  if (found == all.physical.end() || view == nullptr) return Error::invalid_value;
  *view = found->second.piece->view;
  return Error::ok;
}

Error release_physical(std::uint64_t handle) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.physical.find(handle);
  if (found == all.physical.end()) return Error::invalid_value;
  if (--found->second.count == 0) all.physical.erase(found);
  return Error::ok;
}

Error retain_physical(const void* address, std::uint64_t* handle) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const AllocationRef found = all.find(reinterpret_cast<std::uintptr_t>(address));
  if (handle == nullptr || !found || found->physical == nullptr) return Error::invalid_value;
  *handle = hold(all, found->physical);
  return Error::ok;
}

Error export_physical(std::uint64_t handle, int* fd) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.physical.find(handle);
  if (fd == nullptr || found == all.physical.end() || !found->second.piece->view.shareable) return Error::invalid_value;
  *fd = fcntl(found->second.piece->fd, F_DUPFD_CLOEXEC, 0);
  return *fd < 0 ? Error::out_of_memory : Error::ok;
}

Error import_physical(int fd, std::uint64_t* handle) {
  char entry[64];
  std::snprintf(entry, sizeof(entry), "/proc/self/fd/%d", fd);
  const std::optional<FileName> name = identify(entry);
  if (handle == nullptr || !name) return Error::invalid_value;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return Error::out_of_memory;
  PhysicalView view{static_cast<unsigned>(name->pci_bus), 0, true};
  for (int device = 0; device < device_count(); ++device) {
    if (device_pci_bus(device) == view.pci_bus) view.device = device;
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  *handle = hold(all, std::make_shared<Physical>(own, name->bytes, name->nonce, view, false));
  return Error::ok;
}

Error reserve_range(std::size_t bytes, void** address) {
  if (address == nullptr || !granular(bytes)) return Error::invalid_value;
  auto range = std::make_shared<Reservation>(bytes);
  if (!range->ok()) return Error::out_of_memory;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  *address = reinterpret_cast<void*>(range->address());
  all.reservations.emplace(range->address(), std::move(range));
  return Error::ok;
}

Error free_range(void* address, std::size_t bytes) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.reservations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == all.reservations.end() || found->second->bytes != bytes) return Error::invalid_value;
  const auto mapped = all.allocations.lower_bound(found->first);
  if (mapped != all.allocations.end() && mapped->first < found->first + bytes) return Error::invalid_value;
  all.reservations.erase(found);
  return Error::ok;
}

Error map_physical(void* address, std::size_t bytes, std::uint64_t handle) {
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  if (!granular(bytes) || start % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) != 0) return Error::invalid_value;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto piece = all.physical.find(handle);
  auto range = all.reservations.upper_bound(start);
  if (piece == all.physical.end() || range == all.reservations.begin()) return Error::invalid_value;
  --range;
  const Reservation& within = *range->second;
  const std::size_t offset = start - within.address();
  if (offset % virtual_granularity != 0 || offset > within.bytes || bytes > within.bytes - offset) return Error::invalid_value;
  const Physical& memory = *piece->second.piece;
  const auto next = all.allocations.lower_bound(start);
  const bool taken = all.find(start) != nullptr || (next != all.allocations.end() && next->first - start < bytes);
  if (taken || bytes > memory.bytes) return Error::invalid_value;
  std::byte* const alias = within.alias() + offset;
  if (mmap(alias, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.fd, 0) == MAP_FAILED) return Error::out_of_memory;
  const std::shared_ptr<Allocation> made(new Allocation);
  made->address = start;
  made->alias = alias;
  made->bytes = made->mapped = bytes;
  made->device = memory.view.device;
  made->fd = memory.fd;
  made->id = next_id();
  made->nonce = memory.nonce;
  made->exportable = false;
  made->physical = piece->second.piece;
  made->reservation = range->second;
  made->accessible.store(false);
  all.allocations.emplace(start, made);
  return Error::ok;
}

Error allow_access(void* address, std::size_t bytes, int device) {
  if (!device_exists(device)) return Error::invalid_device;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto mappings = whole_mappings(all, reinterpret_cast<std::uintptr_t>(address), bytes);
  for (const AllocationRef& each : mappings) {
    if (!reaches_bus(device, each->physical->view.pci_bus)) return Error::no_peer_access;
  }
  for (const AllocationRef& each : mappings) each->accessible.store(true);
  return mappings.empty() ? Error::invalid_value : Error::ok;
}

// What streams still have queued uses the piece by its descriptor and alias: the vendors ask the program to wait, and so the alias
// stays as it is until it is mapped anew.
Error unmap_range(void* address, std::size_t bytes) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto mappings = whole_mappings(all, reinterpret_cast<std::uintptr_t>(address), bytes);
  for (const AllocationRef& each : mappings) all.allocations.erase(each->address);
  return mappings.empty() ? Error::invalid_value : Error::ok;
}

}  // namespace hmc::sim
