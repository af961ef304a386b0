// Device memory of another process: handles, and the descriptor behind them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

#include "registry.h"
#include "streams.h"

namespace hmc::sim {
namespace {

constexpr char magic[8] = "HMCSIM1";

struct WireHandle {
  char magic[8];
  char tag[8];
  SharedMemory memory;
  std::uint64_t spare[4];
};
static_assert(sizeof(WireHandle) == sizeof(Handle64));

constexpr unsigned pid_bits = 22;  // Linux numbers processes below 4 Mi
constexpr unsigned fd_bits = 20;
constexpr unsigned nonce_bits = 64 - pid_bits - fd_bits;
constexpr std::uint64_t short_nonce = (std::uint64_t{1} << nonce_bits) - 1;

// Reads a whole number in hexadecimal and what must follow it; leaves the rest in `text`.
bool take_hexadecimal(std::string_view& text, std::uint64_t& value, char end_mark) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end == text.data() + text.size() || *end != end_mark) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

std::optional<FileName> identify(const char* entry) {
  char target[256];
  const ssize_t length = readlink(entry, target, sizeof(target));
  if (length <= 0) return std::nullopt;
  std::string_view text(target, static_cast<std::size_t>(length));
  const std::string prefix = std::string("memfd:hmcsim-") + profile.tag + "-";
  const std::size_t start = text.find(prefix);
  if (start == std::string_view::npos || start > 1) return std::nullopt;
  text.remove_prefix(start + prefix.size());
  FileName name;
  if (!take_hexadecimal(text, name.nonce, '-') || !take_hexadecimal(text, name.bytes, '-') ||
      !take_hexadecimal(text, name.pci_bus, '.')) {
    return std::nullopt;
  }
  return name;
}

int make_memory_file(std::uint64_t nonce, std::size_t bytes, int device) {
  char name[96];
  std::snprintf(name, sizeof(name), "hmcsim-%s-%llx-%zx-%x.", profile.tag, static_cast<unsigned long long>(nonce), bytes,
                device_pci_bus(device));
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
  close(fd);
  return -1;
}

SharedMemory describe(const Allocation& allocation) {
  return {static_cast<std::uint32_t>(getpid()), static_cast<std::uint32_t>(allocation.fd), allocation.nonce};
}

Error open_shared(const SharedMemory& memory, std::uint64_t nonce_mask, int device, void** address) {
  if (address == nullptr) return Error::invalid_value;
  if (!device_exists(device)) return Error::invalid_device;
  if (memory.pid == static_cast<std::uint32_t>(getpid())) return Error::same_process;
  char entry[64];
  std::snprintf(entry, sizeof(entry), "/proc/%u/fd/%u", memory.pid, memory.fd);
  // First the name, since opening some other kind of file might block; then that of what was opened, which cannot change any more.
  if (!identify(entry)) return Error::invalid_handle;
  const int fd = open(entry, O_RDWR | O_CLOEXEC);
  if (fd < 0) return Error::invalid_handle;
  std::snprintf(entry, sizeof(entry), "/proc/self/fd/%d", fd);
  const std::optional<FileName> name = identify(entry);
  if (!name || ((name->nonce ^ memory.nonce) & nonce_mask) != 0) {
    close(fd);
    return Error::invalid_handle;
  }
  if (!reaches_bus(device, static_cast<unsigned>(name->pci_bus))) {
    close(fd);
    return Error::no_peer_access;
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& [base, known] : all.allocations) {
    if (known->imported && known->nonce == name->nonce && known->device == device) {
      close(fd);
      ++known->opens;
      *address = reinterpret_cast<void*>(base);
      return Error::ok;
    }
  }
  const AllocationRef made = Allocation::map(fd, name->bytes, device, name->nonce, true);
  if (!made) return Error::out_of_memory;
  all.allocations.emplace(made->address, made);
  *address = reinterpret_cast<void*>(made->address);
  return Error::ok;
}

Error close_shared(void* address) {
  const AllocationRef found = find_allocation(address);
  if (!found || !found->imported || found->address != reinterpret_cast<std::uintptr_t>(address)) return Error::invalid_value;
  static_cast<void>(synchronize_device(found->device));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (found->opens == 0) return Error::invalid_value;  // another thread closed it meanwhile
  if (--found->opens == 0) all.allocations.erase(found->address);
  return Error::ok;
}

Error export_range(const void* address, std::size_t bytes, void* fd) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  const AllocationRef found = find_allocation(address);
  if (fd == nullptr || !found || bytes == 0 || start % page != 0 || bytes % page != 0) return Error::invalid_value;
  if (bytes > found->mapped - (start - found->address)) return Error::invalid_value;
  char entry[64];
  std::snprintf(entry, sizeof(entry), "/proc/self/fd/%d", found->fd);
  const int made = open(entry, O_RDWR | O_CLOEXEC);
  if (made < 0) return Error::out_of_memory;
  lseek(made, static_cast<off_t>(start - found->address), SEEK_SET);
  std::memcpy(fd, &made, sizeof(made));
  return Error::ok;
}

Error export_handle64(const void* pointer, Handle64* handle) {
  if (handle == nullptr) return Error::invalid_value;
  const AllocationRef found = find_allocation(pointer);
  if (!found || found->imported || !found->exportable) return Error::invalid_value;
  WireHandle wire{};
  std::memcpy(wire.magic, magic, sizeof(magic));
  std::strncpy(wire.tag, profile.tag, sizeof(wire.tag) - 1);
  wire.memory = describe(*found);
  std::memcpy(handle->data(), &wire, sizeof(wire));
  return Error::ok;
}

Error open_handle64(const Handle64& handle, int device, void** address) {
  WireHandle wire{};
  std::memcpy(&wire, handle.data(), sizeof(wire));
  if (std::memcmp(wire.magic, magic, sizeof(magic)) != 0) return Error::invalid_handle;
  if (std::strncmp(wire.tag, profile.tag, sizeof(wire.tag)) != 0) return Error::invalid_handle;
  return open_shared(wire.memory, ~std::uint64_t{0}, device, address);
}

Error export_handle8(const void* base, std::uint64_t* handle) {
  if (handle == nullptr) return Error::invalid_value;
  const AllocationRef found = find_allocation(base);
  if (!found || found->imported || found->address != reinterpret_cast<std::uintptr_t>(base)) return Error::invalid_value;
  const SharedMemory memory = describe(*found);
  if (memory.pid >> pid_bits != 0 || memory.fd >> fd_bits != 0) return Error::out_of_memory;
  *handle = std::uint64_t{memory.pid} << (64 - pid_bits) | std::uint64_t{memory.fd} << nonce_bits | (memory.nonce & short_nonce);
  return Error::ok;
}

Error open_handle8(std::uint64_t handle, int device, void** address) {
  const SharedMemory memory{static_cast<std::uint32_t>(handle >> (64 - pid_bits)),
                            static_cast<std::uint32_t>((handle >> nonce_bits) & ((std::uint64_t{1} << fd_bits) - 1)),
                            handle & short_nonce};
  return open_shared(memory, short_nonce, device, address);
}

}  // namespace hmc::sim
