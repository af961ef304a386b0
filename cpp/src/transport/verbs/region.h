// Regions of the verbs transport: registered once with every NIC of the Context, written and read by the NICs alone.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/nic.h"

namespace hmc::verbs {

using Nics = std::vector<std::unique_ptr<Nic>>;

class VerbsLocalRegion final : public LocalRegion {
 public:
  // Any thread. Errors: out_of_memory (locked memory), transport.
  static Result<std::unique_ptr<LocalRegion>> create(const RegionView& view, std::shared_ptr<const Nics> nics);
  // What a peer writes or reads from now on ends its own queue pair with an error, and moves nothing.
  ~VerbsLocalRegion() override;
  Result<Blob> exported() override;
  [[nodiscard]] Result<std::vector<NativeFields>> native(std::size_t offset, std::size_t bytes) const override;

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(view_.span.data); }
  [[nodiscard]] std::uint32_t local_key(const Nic& nic) const noexcept { return handles_[nic.info().nic]->lkey; }

 private:
  VerbsLocalRegion(const RegionView& view, std::shared_ptr<const Nics> nics) : LocalRegion(view), nics_(std::move(nics)) {}

  std::shared_ptr<const Nics> nics_;
  std::vector<ibv_mr*> handles_;  // by PortInfo::nic; none for a region of no bytes
};

class VerbsRemoteRegion final : public RemoteRegion {
 public:
  VerbsRemoteRegion(const RegionKeys& keys, std::uint32_t key) noexcept
      : RemoteRegion(keys.bytes), address_(keys.address), key_(key), access_(keys.access) {}
  [[nodiscard]] std::uint64_t address() const noexcept { return address_; }
  [[nodiscard]] std::uint32_t key() const noexcept { return key_; }  // of the peer's port that this connection goes to
  [[nodiscard]] bool writable() const noexcept { return access_ == Access::read_write; }

 private:
  std::uint64_t address_;
  std::uint32_t key_;
  Access access_;
};

}  // namespace hmc::verbs
