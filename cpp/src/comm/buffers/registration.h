// Registrations: memory made known to transports, shared by every ConnBuffer over the same bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/routing/transport_set.h"
#include "hmc/buffer.h"
#include "hmc/deadline.h"
#include "hmc/memory.h"
#include "transport/transport.h"

namespace hmc {

// One range of one MemoryBlock with one access. Holds the block, and a LocalRegion for each transport that has needed one.
// Engine lock held, except where said.
class Registration : public std::enable_shared_from_this<Registration> {
 public:
  using Clock = Deadline::Clock;

  Registration(Memory memory, Access access) : memory_(std::move(memory)), access_(access) {}

  [[nodiscard]] const Memory& memory() const noexcept { return memory_; }  // any thread
  [[nodiscard]] RegionView view() const;                                   // any thread
  [[nodiscard]] const std::shared_ptr<LocalRegion>* find(const Transport* transport) const noexcept {
    for (const auto& entry : regions_) {
      if (entry.transport == transport && !entry.leaving) return &entry.region;
    }
    return nullptr;
  }
  // As find(), and null while it was not prepared for operations with memory of `remote`.
  [[nodiscard]] const std::shared_ptr<LocalRegion>* find_for(const Transport* transport, const Device& remote) const noexcept {
    for (const auto& entry : regions_) {
      if (entry.transport == transport && !entry.leaving) return entry.prepared_for(remote) ? &entry.region : nullptr;
    }
    return nullptr;
  }
  void mark_prepared(const Transport* transport, const Device& remote);
  // Keeps `region` unless another thread was faster; returns the one kept.
  LocalRegion& add(const Transport* transport, std::shared_ptr<LocalRegion> region);
  // Deregisters everywhere. Nothing may be under way on it.
  void clear() { regions_.clear(); }

  // ---- a region that gives way to others (regions.cc) ----
  // A peer's import of it begins, or has ended.
  void grant(const LocalRegion* region) noexcept;
  void end_grant(const LocalRegion* region);
  // It stays as long as the Registration: somebody knows it who cannot be asked to let it go.
  void pin(const Transport* transport) noexcept;
  // The region that may give way, if it has been there since `before`, and since when. Null: there is none.
  [[nodiscard]] const LocalRegion* scarce_region(const Transport* transport, Clock::time_point before,
                                                 Clock::time_point& since) const;
  // Nobody finds it any more; it goes with the last grant.
  void begin_leaving(const LocalRegion* region);
  [[nodiscard]] bool has(const LocalRegion* region) const noexcept;
  // Takes that back; it counts as new.
  void stay(const LocalRegion* region) noexcept;

  std::uint32_t users = 0;   // ConnBuffers whose registration has not ended
  TransportSet refused = 0;  // those that could not register it

 private:
  Memory memory_;
  Access access_;
  struct Entry {
    const Transport* transport;
    std::shared_ptr<LocalRegion> region;
    std::vector<Device> prepared;  // devices of peers
    std::uint32_t grants = 0;      // imports of peers
    Clock::time_point since = Clock::now();
    bool pinned = false;
    bool leaving = false;
    [[nodiscard]] bool prepared_for(const Device& remote) const noexcept {
      return remote.is_cpu() || std::find(prepared.begin(), prepared.end(), remote) != prepared.end();
    }
  };
  [[nodiscard]] Entry* entry_of(const LocalRegion* region) noexcept;
  std::vector<Entry> regions_;
};

}  // namespace hmc
