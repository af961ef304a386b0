// Regions of the verbs transport: registered once with every NIC of the Context, written and read by the NICs alone.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/device_memory.h"
#include "transport/verbs/nic.h"

namespace hmc::verbs {

using Nics = std::vector<std::unique_ptr<Nic>>;

class VerbsLocalRegion final : public LocalRegion {
 public:
  // Any thread. Errors: out_of_memory (locked memory), transport, unsupported (memory of a device that a card does not reach),
  // would_block (a vendor's budget is used up).
  static Result<std::unique_ptr<LocalRegion>> create(const RegionView& view, std::shared_ptr<const Nics> nics,
                                                     DeviceMemory& devices);
  // What a peer writes or reads from now on ends its own queue pair with an error, and moves nothing.
  ~VerbsLocalRegion() override;
  Result<Blob> exported() override;
  [[nodiscard]] Result<std::vector<NativeFields>> native(std::size_t offset, std::size_t bytes) const override;
  [[nodiscard]] bool scarce() const noexcept override { return budget_ != nullptr; }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(view_.span.data); }
  [[nodiscard]] bool on_device() const noexcept { return !view_.span.device.is_cpu(); }
  [[nodiscard]] bool known_to(const Nic& nic) const noexcept { return handles_[nic.info().nic] != nullptr; }
  [[nodiscard]] std::uint32_t local_key(const Nic& nic) const noexcept { return handles_[nic.info().nic]->lkey; }
  [[nodiscard]] int numa_node() const noexcept { return numa_node_; }  // of a device; else -1

 private:
  VerbsLocalRegion(const RegionView& view, std::shared_ptr<const Nics> nics) : LocalRegion(view), nics_(std::move(nics)) {}
  Status add(Nic& nic, DeviceMemory& devices);

  std::shared_ptr<const Nics> nics_;
  std::vector<ibv_mr*> handles_;  // by PortInfo::nic; none for a region of no bytes; null: a card that reaches no device
  std::unique_ptr<BudgetShare> budget_;
  int numa_node_ = -1;
};

class VerbsRemoteRegion final : public RemoteRegion {
 public:
  explicit VerbsRemoteRegion(RegionKeys keys) noexcept : RemoteRegion(keys.bytes), keys_(std::move(keys)) {}
  [[nodiscard]] std::uint64_t address() const noexcept { return keys_.address; }
  [[nodiscard]] bool known_to(const PortInfo& port) const noexcept { return port.nic < keys_.keys.size() && keys_.keys[port.nic]; }
  [[nodiscard]] std::uint32_t key(const PortInfo& port) const noexcept { return *keys_.keys[port.nic]; }  // of a port of the peer
  [[nodiscard]] bool writable() const noexcept override { return keys_.access == Access::read_write; }
  [[nodiscard]] bool on_device() const noexcept { return keys_.device; }

 private:
  RegionKeys keys_;
};

[[nodiscard]] inline const VerbsLocalRegion& local_of(const Run& run) noexcept {
  return static_cast<const VerbsLocalRegion&>(*run.local);
}
[[nodiscard]] inline const VerbsRemoteRegion& remote_of(const Run& run) noexcept {
  return static_cast<const VerbsRemoteRegion&>(*run.remote);
}

}  // namespace hmc::verbs
