#include "fabric/shadow.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace hmc::fabric {

std::unique_ptr<Shadow> Shadow::of_host(void* address) {
  auto made = std::unique_ptr<Shadow>(new Shadow);
  made->data_ = static_cast<std::byte*>(address);
  return made;
}

std::unique_ptr<Shadow> Shadow::of_nothing(std::size_t bytes) { return map(-1, 0, bytes); }

// A simulated dma-buf begins at its descriptor's position.
std::unique_ptr<Shadow> Shadow::of_file(int fd, std::uint64_t offset, std::size_t bytes) {
  return map(fd, offset + static_cast<std::uint64_t>(lseek(fd, 0, SEEK_CUR)), bytes);
}

std::unique_ptr<Shadow> Shadow::of_device(void* address, std::size_t bytes) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  std::uint64_t first = 0, last = 0, offset = 0, inode = 0;
  for (std::string line; std::getline(maps, line);) {
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64, &first, &last, &offset, &inode) == 4 &&
        first <= wanted && wanted + bytes <= last && inode != 0) {
      break;
    }
    inode = 0;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat facts{};
    if (inode == 0 || stat(entry.path().c_str(), &facts) != 0 || facts.st_ino != inode) continue;
    const int fd = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;
    auto made = map(fd, offset + (wanted - first), bytes);
    close(fd);
    return made;
  }
  errno = EFAULT;
  return nullptr;
}

std::unique_ptr<Shadow> Shadow::map(int fd, std::uint64_t offset, std::size_t bytes) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  auto made = std::unique_ptr<Shadow>(new Shadow);
  const std::uint64_t start = offset / page * page;
  made->mapped_ = bytes + (offset - start);
  void* base = mmap(nullptr, made->mapped_, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd,
                    static_cast<off_t>(start));
  if (base == MAP_FAILED) return nullptr;
  made->mapping_ = base;
  made->data_ = static_cast<std::byte*>(base) + (offset - start);
  return made;
}

Shadow::~Shadow() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

// By a system call, which says that it cannot instead of faulting.
bool readable(const void* address, std::size_t bytes) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  const auto* first = static_cast<const std::byte*>(address);
  const bool both = write(ends[1], first, 1) == 1 && write(ends[1], first + bytes - 1, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return both;
}

}  // namespace hmc::fabric
