#include "transport/shm/channel_memory.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace hmc::shm {

Result<ChannelMemory> ChannelMemory::create(const Sizes& sizes) {
  ChannelMemory channel;
  channel.sizes_ = sizes;
  HMC_ASSIGN(channel.pages_, SharedPages::create("hmc-ring", sizes.total()));
  return channel;
}

Result<ChannelMemory> ChannelMemory::attach(const UniqueFd& fd, const Sizes& sizes) {
  if (!sizes.valid()) return Status(Code::protocol, "the peer's ring has impossible sizes");
  UniqueFd own = fd.duplicate();
  if (!own) return errno_status("duplicating a ring's descriptor", errno);
  ChannelMemory channel;
  channel.sizes_ = sizes;
  HMC_ASSIGN(channel.pages_, SharedPages::attach(std::move(own), "hmc-ring", sizes.total()));
  return channel;
}

// In steps: most peers exchange no more than a few small messages.
Status ChannelMemory::reserve_more_signals(std::uint64_t end) {
  constexpr std::uint64_t step = 64 << 10;
  const std::uint64_t upto = std::min<std::uint64_t>((end + step - 1) / step * step, sizes_.signal_bytes);
  HMC_TRY(pages_.reserve(control_bytes + signals_reserved_, upto - signals_reserved_));
  signals_reserved_ = upto == sizes_.signal_bytes ? ~std::uint64_t{0} : upto;
  return {};
}

Status ChannelMemory::reserve_slots() {
  if (slots_reserved_) return {};
  HMC_TRY(pages_.reserve(control_bytes + sizes_.signal_bytes, slot_count * sizes_.slot_bytes));
  slots_reserved_ = true;
  return {};
}

}  // namespace hmc::shm
