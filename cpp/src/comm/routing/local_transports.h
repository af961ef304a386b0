// LocalTransports: the transports of one Context, in the order of the table. Owned by ContextImpl. Engine lock held.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/api/native_links.h"
#include "comm/connection/endpoint_slot.h"
#include "comm/routing/filter.h"
#include "transport/transport.h"

namespace hmc {

class ContextImpl;
class ContextState;

// The transports of this build, and behind them what a test has added. Additions are made before the first Context.
std::vector<const TransportFactory*>& all_transports();
std::vector<std::string> known_transports();

// Whether `context` may share memory with other processes of the host: one of its transports does. Engine lock not held.
bool shares_memory(ContextState& context);
// "shm,tcp": the transports of `context` that can be used. Engine lock not held.
std::string available_transports(ContextState& context);

class LocalTransports {
 public:
  explicit LocalTransports(ContextImpl& context) noexcept : native_links_(context) {}

  // Makes every transport compiled in that `filter` allows, and has the engine poll them.
  void start(const TransportEnvironment& environment, const TransportFilter& filter);
  // After everything that uses them.
  void stop(Engine& engine);

  [[nodiscard]] auto begin() const noexcept { return slots_.begin(); }
  [[nodiscard]] auto end() const noexcept { return slots_.end(); }
  [[nodiscard]] TransportSlot* find(std::string_view name) const noexcept;  // null: no such transport
  // Connections of these transports to non-HMC programs.
  [[nodiscard]] NativeLinks& native_links() noexcept { return native_links_; }
  void add_counters(std::map<std::string, std::uint64_t>& counters) const;

 private:
  std::vector<std::unique_ptr<TransportSlot>> slots_;
  NativeLinks native_links_;
};

}  // namespace hmc
