// What verbs programs that are not HMC are told, and the queue pairs that they write and read through.
#pragma once

#include <memory>

#include "transport/verbs/link.h"

namespace hmc::verbs {

// Names of a port: device, port, gid, gid_index, lid, mtu.
[[nodiscard]] NativeFields native_port(const Nic& nic);

// Where the peer's queue pair is, as its program says. Errors: invalid_argument (a field that is missing, unknown or out of range).
struct NativePeer {
  PortInfo port;
  std::uint32_t number = 0;    // of its queue pair
  std::uint32_t sequence = 0;  // of its first packet
};
[[nodiscard]] Result<NativePeer> native_peer(const NativeFields& fields);

// The target end of a reliable connection: answers the peer's writes and reads, and asks nothing.
class VerbsNativeLink final : public NativeLink {
 public:
  static Result<std::unique_ptr<NativeLink>> create(const std::shared_ptr<Shared>& shared, const NativeFields& peer);
  [[nodiscard]] NativeFields fields() const override;

 private:
  VerbsNativeLink(std::shared_ptr<Shared> shared, Nic& nic, std::unique_ptr<QueuePair> pair, std::uint8_t mtu) noexcept
      : shared_(std::move(shared)), nic_(nic), pair_(std::move(pair)), mtu_(mtu) {}

  std::shared_ptr<Shared> shared_;  // keeps the Nic
  Nic& nic_;
  std::unique_ptr<QueuePair> pair_;
  std::uint8_t mtu_;  // of both ends, as in PortInfo
};

}  // namespace hmc::verbs
