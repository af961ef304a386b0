#include "collective/fused/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace hmc::fused {

Result<std::shared_ptr<Segment>> Segment::map(UniqueFd fd, std::uint32_t ranks) {
  HMC_ASSIGN(auto mapping, Mapping::map(fd.get(), 0, Slots::bytes_for(ranks), true));
  return std::shared_ptr<Segment>(new Segment(std::move(fd), std::move(mapping), ranks));
}

Result<std::shared_ptr<Segment>> Segment::create(std::uint32_t ranks) {
  UniqueFd fd = make_memfd("hmc-group");
  if (!fd) return errno_status("memfd_create for a group's segment", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(Slots::bytes_for(ranks))) != 0) return errno_status("sizing a group's segment", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return errno_status("sealing a group's segment", errno);
  auto segment = map(std::move(fd), ranks);
  // The boards are written without a look at what memory is left.
  if (segment && fallocate((*segment)->fd_.get(), 0, 0, static_cast<off_t>(ranks * board_bytes)) != 0)
    return errno_status("allocating a group's segment", errno);
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::attach(UniqueFd fd, std::uint32_t ranks) {
  HMC_TRY(verify_sealed(fd.get(), Slots::bytes_for(ranks)).status());
  // Huge pages can run out under a mapping, which is a SIGBUS; those of tmpfs cannot but by the host's memory.
  struct statfs system{};
  if (fstatfs(fd.get(), &system) != 0) return errno_status("fstatfs of a group's segment", errno);
  if (system.f_type != TMPFS_MAGIC) return Status(Code::protocol, "a group's segment is not plain shared memory");
  return map(std::move(fd), ranks);
}

Status Segment::reserve(std::uint32_t rank) const {
  int error = 0;
  do {
    const auto offset = static_cast<off_t>(slots_.area(rank) - mapping_.data());
    error = fallocate(fd_.get(), 0, offset, static_cast<off_t>(rank_bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return {};
  return errno_status("allocating a rank's slots", error == ENOSPC ? ENOMEM : error);
}

}  // namespace hmc::fused
