#include "transport/staging/ring.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "base/log.h"

namespace hmc::staging {

std::uint32_t Geometry::page_bytes() noexcept { return static_cast<std::uint32_t>(sysconf(_SC_PAGESIZE)); }

bool Geometry::valid() const noexcept { return slots >= 2 && slots <= 64 && chunk_bytes != 0 && chunk_bytes <= (16U << 20); }

Result<std::unique_ptr<Ring>> Ring::allocate(const Geometry& geometry, bool shared) {
  auto pages = shared ? SharedPages::create("hmc-staging", geometry.bytes()) : SharedPages::unshared(geometry.bytes());
  if (shared && !pages.ok() && refuses_shared_memory(pages.status().native())) {
    warn_once("staging.ring", std::string(pages.status().message()) +
                                  "; staged transfers are carried between processes, which is slower. Allow memfd_create in the "
                                  "security profile.");
    pages = SharedPages::unshared(geometry.bytes());
  }
  HMC_TRY(pages.status());
  return std::unique_ptr<Ring>(new Ring(geometry, *std::move(pages)));
}

Result<std::unique_ptr<Ring>> Ring::map(const Geometry& geometry, UniqueFd fd) {
  HMC_ASSIGN(SharedPages pages, SharedPages::attach(std::move(fd), "hmc-staging", geometry.bytes()));
  pages.drop_fd();
  return std::unique_ptr<Ring>(new Ring(geometry, std::move(pages)));
}

Ring::Ring(const Geometry& geometry, SharedPages pages)
    : geometry_(geometry),
      pages_(std::make_shared<const SharedPages>(std::move(pages))),
      groups_(static_cast<std::size_t>(std::bit_width(geometry.slots - 1)) + 1) {
  for (std::uint32_t slot = 0; slot < geometry.slots; ++slot) {
    Group& group = group_of(slot);
    if (group.slots++ == 0) group.first = slot;
  }
}

Status Ring::reserve(std::uint32_t slot) {
  Group& group = group_of(slot);
  if (group.reserved || !fd()) return {};
  const auto now = Deadline::Clock::now();
  if (now < ask_again_) return refused_;
  refused_ = pages_->reserve(slot_offset(group.first), group.slots * geometry_.slot_bytes());
  group.reserved = refused_.ok();
  if (!group.reserved && usable()) ask_again_ = now + std::chrono::milliseconds(10);
  return refused_;
}

bool Ring::lacks(std::uint32_t slot) const noexcept {
  return fd() && !refused_.ok() && usable() && !groups_[group_index(slot)].reserved;
}

bool Ring::usable() const noexcept {
  return !fd() || std::ranges::any_of(groups_, [](const Group& group) { return group.reserved; });
}

void Ring::pin_for(const Device& device, std::uint32_t slot) {
  Group& group = group_of(slot);
  group.pins.pin_for(device, {{payload(group.first), group.slots * geometry_.slot_bytes(), Device::cpu()}, pages_});
}

// Host byte order: the ring is shared, or carried, between processes that the handshake found alike.
void Ring::write_entry(std::uint32_t slot, std::size_t index, const Entry& value) noexcept {
  const std::uint64_t words[] = {value.region, value.offset, value.bytes};
  std::memcpy(entry(slot, index), words, entry_bytes);
}

Entry Ring::read_entry(std::uint32_t slot, std::size_t index) const noexcept {
  std::uint64_t words[3];
  std::memcpy(words, entry(slot, index), entry_bytes);
  return {words[0], words[1], words[2]};
}

}  // namespace hmc::staging
