// Ring: the slots of host memory that chunks pass through. The side that starts an operation owns its ring and hands out the slots.
#pragma once

#include <cstdint>
#include <memory>

#include "device/host_pins.h"
#include "hmc/memory.h"
#include "memory/block.h"

namespace hmc::staging {

// One slot: payload, then the table that says where the payload's pieces lie at the peer.
struct Geometry {
  std::uint32_t slots = 8;
  std::uint32_t chunk_bytes = 4 << 20;
  static constexpr std::uint32_t table_bytes = 64 << 10;
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return std::size_t{chunk_bytes} + table_bytes; }
  [[nodiscard]] std::size_t bytes() const noexcept { return slots * slot_bytes(); }
  [[nodiscard]] bool valid() const noexcept;
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
  static Result<std::unique_ptr<Ring>> allocate(const Geometry& geometry);
  // The peer's, mapped here: the same pages.
  static Result<std::unique_ptr<Ring>> map(const Geometry& geometry, const Blob& handle);

  [[nodiscard]] const Geometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] const DeviceSpan& span() const noexcept { return span_; }
  [[nodiscard]] Result<Blob> handle() const { return memory_.block()->export_handle(HandleKind::memfd); }
  [[nodiscard]] bool shareable() const noexcept { return memory_.shareable(); }
  [[nodiscard]] std::uint64_t slot_offset(std::uint32_t slot) const noexcept { return slot * geometry_.slot_bytes(); }
  [[nodiscard]] std::byte* payload(std::uint32_t slot) const noexcept {
    return static_cast<std::byte*>(span_.data) + slot_offset(slot);
  }
  void write_entry(std::uint32_t slot, std::size_t index, const Entry& entry) noexcept;
  // A copy: the peer may write the table at any time.
  [[nodiscard]] Entry read_entry(std::uint32_t slot, std::size_t index) const noexcept;
  void pin_for(const Device& device) { pins_.pin_for(device, {span_, owner_}); }

 private:
  explicit Ring(const Geometry& geometry) noexcept : geometry_(geometry) {}
  [[nodiscard]] std::byte* entry(std::uint32_t slot, std::size_t index) const noexcept {
    return payload(slot) + geometry_.chunk_bytes + index * entry_bytes;
  }

  const Geometry geometry_;
  Memory memory_;                      // own ring
  std::shared_ptr<const void> owner_;  // of the pages
  DeviceSpan span_;
  HostPins pins_;
};

}  // namespace hmc::staging
