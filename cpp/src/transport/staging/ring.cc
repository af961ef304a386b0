#include "transport/staging/ring.h"

#include <cstring>

namespace hmc::staging {

bool Geometry::valid() const noexcept {
  return slots >= 2 && slots <= 64 && chunk_bytes >= 4096 && chunk_bytes <= (16U << 20) && chunk_bytes % 4096 == 0;
}

Result<std::unique_ptr<Ring>> Ring::allocate(const Geometry& geometry) {
  auto ring = std::unique_ptr<Ring>(new Ring(geometry));
  HMC_ASSIGN(ring->memory_, Memory::allocate(geometry.bytes()));
  ring->owner_ = ring->memory_.block();
  ring->span_ = {ring->memory_.data(), ring->memory_.size(), Device::cpu()};
  return ring;
}

Result<std::unique_ptr<Ring>> Ring::map(const Geometry& geometry, const Blob& handle) {
  auto ring = std::unique_ptr<Ring>(new Ring(geometry));
  HMC_ASSIGN(DeviceRuntime * host, runtime_for(Device::cpu()));
  HMC_ASSIGN(std::shared_ptr<Allocation> mapping, host->sharing().import_handle(0, handle, HandleKind::memfd));
  ring->span_ = mapping->span();
  ring->owner_ = std::move(mapping);
  if (ring->span_.bytes < geometry.bytes()) return Status(Code::protocol, "the peer's staging ring is smaller than it claims");
  return ring;
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
