#include "transport/shared_pages.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/available_memory.h"

namespace hmc {

Result<SharedPages> SharedPages::create(const char* name, std::size_t bytes) {
  UniqueFd fd = make_memfd(name);
  if (!fd) return errno_status(std::string("memfd_create for ") + name, errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno_status(std::string("sizing ") + name, errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return errno_status(std::string("sealing ") + name, errno);
  HMC_ASSIGN(Mapping mapping, Mapping::map(fd.get(), 0, bytes, true));
  return SharedPages(std::move(fd), std::move(mapping));
}

Result<SharedPages> SharedPages::unshared(std::size_t bytes) {
  HMC_TRY(check_available(bytes));
  HMC_ASSIGN(Mapping mapping, Mapping::anonymous(bytes));
  return SharedPages(UniqueFd(), std::move(mapping));
}

Result<SharedPages> SharedPages::attach(UniqueFd fd, std::string_view name, std::size_t bytes) {
  HMC_TRY(verify_sealed(fd.get(), bytes).status());
  // Huge pages can run out under a mapping, which is a SIGBUS; those of tmpfs cannot but by the host's memory.
  struct statfs system{};
  if (fstatfs(fd.get(), &system) != 0) return errno_status("fstatfs of a peer's shared file " + std::string(name), errno);
  if (system.f_type != TMPFS_MAGIC)
    return Status(Code::protocol, "a peer's shared file " + std::string(name) + " is not plain memory");
  HMC_ASSIGN(Mapping mapping, Mapping::map(fd.get(), 0, bytes, true));
  return SharedPages(std::move(fd), std::move(mapping));
}

Status SharedPages::reserve(std::size_t offset, std::size_t bytes) const {
  HMC_TRY(check_available(bytes));
  int error = allocate_pages(fd_.get(), offset, bytes);
  if (error == ENOSPC) error = ENOMEM;
  return error == 0 ? Status() : errno_status("allocating " + std::to_string(bytes) + " bytes of shared memory", error);
}

}  // namespace hmc
