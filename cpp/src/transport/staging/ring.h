// Ring: the slots of host memory that chunks pass through. The side that starts an operation owns its ring and hands out the slots.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/host_pins.h"
#include "hmc/deadline.h"
#include "transport/shared_pages.h"

namespace hmc::staging {

// One slot: payload, then the table that says where the payload's pieces lie at the peer.
struct Geometry {
  std::uint32_t slots = 8;
  std::uint32_t chunk_bytes = 4 << 20;
  static constexpr std::uint32_t table_bytes = 64 << 10;
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return std::size_t{chunk_bytes} + table_bytes; }
  [[nodiscard]] std::size_t bytes() const noexcept { return slots * slot_bytes(); }
  [[nodiscard]] bool valid() const noexcept;
  // Chunks are of whole pages, so that what is pinned for one slot is no part of another.
  [[nodiscard]] static std::uint32_t page_bytes() noexcept;
  [[nodiscard]] bool of_whole_pages() const noexcept { return chunk_bytes % page_bytes() == 0; }
};
// A table entry as it lies in the slot: u64 region, u64 offset, u64 bytes.
inline constexpr std::size_t entry_bytes = 24;
inline constexpr std::size_t max_entries = Geometry::table_bytes / entry_bytes;

struct Entry {
  std::uint64_t region = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class Ring {
 public:
  // No page of it used yet. `shared`: with a descriptor, unless the system refuses shared memory, which a warning says once.
  static Result<std::unique_ptr<Ring>> allocate(const Geometry& geometry, bool shared);
  // The peer's, mapped here: the same pages.
  static Result<std::unique_ptr<Ring>> map(const Geometry& geometry, UniqueFd fd);

  [[nodiscard]] const Geometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] DeviceSpan span() const noexcept { return {pages_->data(), geometry_.bytes(), Device::cpu()}; }
  // By which a peer of this host maps it. Empty where it is not shared.
  [[nodiscard]] const UniqueFd& fd() const noexcept { return pages_->fd(); }
  [[nodiscard]] std::uint64_t slot_offset(std::uint32_t slot) const noexcept { return slot * geometry_.slot_bytes(); }
  [[nodiscard]] std::byte* payload(std::uint32_t slot) const noexcept { return pages_->data() + slot_offset(slot); }
  // Takes the pages of the slot's group: before the first store to a slot of a ring that was allocated here. Most peers need one or
  // two. Errors: out_of_memory.
  // After one that was refused while others have theirs, the system is not asked again for some milliseconds.
  Status reserve(std::uint32_t slot);
  // The slot has no pages, and the last time the system had none for some slot, while others have theirs.
  [[nodiscard]] bool lacks(std::uint32_t slot) const noexcept;
  // Some slot has its pages.
  [[nodiscard]] bool usable() const noexcept;
  void write_entry(std::uint32_t slot, std::size_t index, const Entry& entry) noexcept;
  // A copy: the peer may write the table at any time.
  [[nodiscard]] Entry read_entry(std::uint32_t slot, std::size_t index) const noexcept;
  // For copies between the slot and the device. Its owner has reserved it.
  void pin_for(const Device& device, std::uint32_t slot);

 private:
  // Slot 0, slot 1, slots 2 and 3, 4 to 7, and so on: small transfers need few, and large ones are held up by few pins.
  struct Group {
    std::uint32_t first = 0;
    std::uint32_t slots = 0;
    bool reserved = false;
    HostPins pins;
  };

  Ring(const Geometry& geometry, SharedPages pages);
  [[nodiscard]] static std::size_t group_index(std::uint32_t slot) noexcept {
    return static_cast<std::size_t>(std::bit_width(slot));
  }
  [[nodiscard]] Group& group_of(std::uint32_t slot) noexcept { return groups_[group_index(slot)]; }
  [[nodiscard]] std::byte* entry(std::uint32_t slot, std::size_t index) const noexcept {
    return payload(slot) + geometry_.chunk_bytes + index * entry_bytes;
  }

  const Geometry geometry_;
  const std::shared_ptr<const SharedPages> pages_;
  std::vector<Group> groups_;
  Status refused_;
  Deadline::Clock::time_point ask_again_{};
};

}  // namespace hmc::staging
