// Regions: memory of this process as transports know it. Owned by ContextImpl.
//
// A Registration is shared by every ConnBuffer over the same bytes while one is open. Where a vendor limits registrations, idle
// regions give way to new ones (regions.cc).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "comm/buffers/registration.h"
#include "hmc/peer.h"
#include "progress/worker.h"

namespace hmc {

class ContextImpl;
struct Route;

// Registers exactly `view` with the transport of `route`, for one message: its region begins where the message does.
Result<std::shared_ptr<LocalRegion>> transient_region(Route& route, const MemoryView& view);

class Regions {
 public:
  explicit Regions(ContextImpl& context) noexcept : context_(context) {}

  // ---- engine lock held ----
  // These bytes again, or anew. A Registration holds its block, so a key cannot be reused for other memory while its entry lives;
  // nothing is kept beyond the last ConnBuffer.
  std::shared_ptr<Registration> get(const Memory& memory, Access access);
  // For want of room something was refused: `accept` is to take that back.
  void reconsider_soon(std::function<void()> accept);
  // For what peers ask to be registered.
  [[nodiscard]] Worker& worker() noexcept { return worker_; }

  // ---- engine lock not held ----
  // Registers, and makes room where a vendor's budget is used up. Errors: as the transport's; would_block: there is no room for
  // now.
  Result<std::shared_ptr<LocalRegion>> make(const Registration& registration, Transport& transport, Deadline deadline);
  // Registers where that has not been done yet.
  Status ensure(Registration& registration, Transport& transport, Deadline deadline);
  // First-use work for operations with memory of `remote`.
  void prepare(Registration& registration, const Transport& transport, const Device& remote);

 private:
  // One region of that device's vendor, if those that may go have `least` bytes together.
  bool evict(const Transport& transport, const Device& device, std::size_t least, Deadline deadline);
  struct Victim {
    std::shared_ptr<Registration> registration;  // null: there is none
    const LocalRegion* region = nullptr;
    std::size_t together = 0;  // bytes of all that may go
  };
  Victim pick_victim(const Transport& transport, const Device& device);
  void all_routes_changed();

  ContextImpl& context_;
  using Key = std::tuple<const MemoryBlock*, std::size_t, std::size_t, Access>;
  std::map<Key, std::weak_ptr<Registration>> registrations_;
  std::size_t sweep_at_ = 64;
  Worker worker_;
};

}  // namespace hmc
