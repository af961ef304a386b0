#include "transport/shm/channel_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace hmc::shm {

Result<ChannelMemory> ChannelMemory::create(const Sizes& sizes) {
  ChannelMemory channel;
  channel.sizes_ = sizes;
  channel.fd_ = make_memfd("hmc-ring");
  const int raw = channel.fd_.get();
  if (raw < 0) return errno_status("memfd_create for a ring", errno);
  if (ftruncate(raw, static_cast<off_t>(sizes.total())) != 0) return errno_status("sizing a ring", errno);
  if (fcntl(raw, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return errno_status("sealing a ring", errno);
  HMC_ASSIGN(channel.mapping_, Mapping::map(raw, 0, sizes.total(), true));
  return channel;
}

Result<ChannelMemory> ChannelMemory::attach(const UniqueFd& fd, const Sizes& sizes) {
  if (!sizes.valid()) return Status(Code::protocol, "the peer's ring has impossible sizes");
  HMC_TRY(verify_sealed(fd.get(), sizes.total()).status());
  // Huge pages can run out under a mapping, which is a SIGBUS; those of tmpfs cannot but by the host's memory.
  struct statfs system{};
  if (fstatfs(fd.get(), &system) != 0) return errno_status("fstatfs of a peer's ring", errno);
  if (system.f_type != TMPFS_MAGIC) return Status(Code::protocol, "the peer's ring is not plain shared memory");
  ChannelMemory channel;
  channel.sizes_ = sizes;
  channel.fd_ = fd.duplicate();
  if (!channel.fd_) return errno_status("duplicating a ring's descriptor", errno);
  HMC_ASSIGN(channel.mapping_, Mapping::map(channel.fd_.get(), 0, sizes.total(), true));
  return channel;
}

Status ChannelMemory::reserve(std::size_t offset, std::size_t bytes) {
  int error = 0;
  do {
    error = fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == ENOSPC) error = ENOMEM;
  if (error != 0) return errno_status("allocating " + std::to_string(bytes) + " bytes of shared ring", error);
  return {};
}

// In steps: most peers exchange no more than a few small messages.
Status ChannelMemory::reserve_more_signals(std::uint64_t end) {
  constexpr std::uint64_t step = 64 << 10;
  const std::uint64_t upto = std::min<std::uint64_t>((end + step - 1) / step * step, sizes_.signal_bytes);
  HMC_TRY(reserve(control_bytes + signals_reserved_, upto - signals_reserved_));
  signals_reserved_ = upto == sizes_.signal_bytes ? ~std::uint64_t{0} : upto;
  return {};
}

Status ChannelMemory::reserve_slots() {
  if (slots_reserved_) return {};
  HMC_TRY(reserve(control_bytes + sizes_.signal_bytes, slot_count * sizes_.slot_bytes));
  slots_reserved_ = true;
  return {};
}

}  // namespace hmc::shm
