// NativeLinks: connections of a Context to non-HMC programs, and what such programs need to reach its memory. Owned by
// LocalTransports.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hmc/buffer.h"
#include "transport/transport.h"

namespace hmc {

class ContextImpl;
class NativeState;

class NativeLinks {
 public:
  explicit NativeLinks(ContextImpl& context) noexcept : context_(context) {}

  // ---- engine lock not held ----
  Result<std::vector<NativeFields>> fields(const ConnBuffer& buffer, std::string_view transport);
  Result<std::shared_ptr<NativeState>> connect(std::string_view transport, const NativeFields& peer);

  // ---- engine lock held ----
  void end(std::uint64_t id) { links_.erase(id); }
  void end_all() { links_.clear(); }

 private:
  Result<Transport*> usable_transport(std::string_view name);

  ContextImpl& context_;
  std::unordered_map<std::uint64_t, std::unique_ptr<NativeLink>> links_;
  std::uint64_t last_id_ = 0;
};

}  // namespace hmc
