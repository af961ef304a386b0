#include "transport/host_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/wire.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace hmc {

namespace {

// A descriptor of the same file that can only be read from, so that an honest peer cannot write by mistake. (A dishonest one of the
// same user can reopen it: the kernel's permissions are the border between processes.)
UniqueFd read_only(const UniqueFd& fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  UniqueFd reopened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return reopened ? std::move(reopened) : fd.duplicate();
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Result<Mapping> Mapping::map(int fd, std::uint64_t offset, std::size_t bytes, bool writable) {
  void* base = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (base == MAP_FAILED) return errno_status("mapping " + std::to_string(bytes) + " bytes of shared memory", errno);
  return Mapping(base, bytes);
}

Result<Mapping> Mapping::anonymous(std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return errno_status("mapping " + std::to_string(bytes) + " bytes of memory", errno);
  return Mapping(base, bytes);
}

Status Mapping::populate(bool writable) const {
  for (;;) {
    if (madvise(base_, bytes_, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0) return {};
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return {};  // Linux before 5.14: pages come at first touch
    return errno_status("populating " + std::to_string(bytes_) + " bytes of shared memory", errno);
  }
}

void Mapping::reset() noexcept {
  if (base_ != nullptr) munmap(base_, bytes_);
  base_ = nullptr;
  bytes_ = 0;
}

Result<std::size_t> verify_sealed(int fd, std::uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return Status(Code::protocol, "the peer passed a descriptor that is not a memfd", errno);
  if ((seals & F_SEAL_SHRINK) == 0) return Status(Code::protocol, "the peer passed a memfd that is not sealed against shrinking");
  struct stat info{};
  if (fstat(fd, &info) != 0) return errno_status("fstat of a peer's memfd", errno);
  if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) < bytes) {
    return Status(Code::protocol,
                  "the peer passed a memfd of " + std::to_string(info.st_size) + " bytes for " + std::to_string(bytes));
  }
  return info.st_blksize > 0 ? static_cast<std::size_t>(info.st_blksize) : std::size_t{4096};
}

bool has_file(const RegionView& view) { return view.block && view.block->shareable() && !view.transient && view.span.bytes != 0; }

Result<RegionFile> region_file(const RegionView& view) {
  HMC_ASSIGN(Blob handle, view.block->export_handle(HandleKind::memfd));
  WireReader reader(handle.bytes);
  reader.u64();  // size of the file: the importer asks the file itself
  const std::uint64_t block_offset = reader.u64();
  if (!reader.finish() || handle.fds.size() != 1) return Status(Code::device, "the host runtime exported a malformed memfd handle");
  const auto within = static_cast<std::uint64_t>(static_cast<const std::byte*>(view.span.data) -
                                                 static_cast<const std::byte*>(view.block->span().data));
  RegionFile file{view.access == Access::read ? read_only(handle.fds[0]) : std::move(handle.fds[0]), block_offset + within};
  if (!file.fd) return errno_status("duplicating a memfd", errno);
  return file;
}

Result<MappedRegion> map_region(const RegionFile& file, std::size_t bytes, bool writable) {
  HMC_ASSIGN(const std::size_t block, verify_sealed(file.fd.get(), file.offset + bytes));
  // Mappings start and end at pages of the file, which are huge ones on hugetlbfs.
  const std::uint64_t page = std::max<std::size_t>(block, 4096);
  const std::uint64_t slack = file.offset % page;
  MappedRegion region;
  HMC_ASSIGN(region.pages, Mapping::map(file.fd.get(), file.offset - slack, (slack + bytes + page - 1) / page * page, writable));
  region.data = region.pages.data() + slack;
  return region;
}

}  // namespace hmc
