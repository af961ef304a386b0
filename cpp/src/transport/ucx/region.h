// Regions of the ucx transport: registered with UCX once where network cards reach them, and named by a number in messages.
#pragma once

#include <memory>
#include <unordered_map>

#include "transport/transport.h"
#include "transport/ucx/native.h"
#include "transport/ucx/wire.h"
#include "transport/ucx/worker.h"

namespace hmc::ucx {

class UcxLocalRegion;

// Those that peers may name. Engine lock held.
using Regions = std::unordered_map<std::uint64_t, const UcxLocalRegion*>;

class UcxLocalRegion final : public LocalRegion {
 public:
  // Any thread.
  static Result<std::unique_ptr<LocalRegion>> create(const RegionView& view, std::shared_ptr<const LibraryContext> context,
                                                     std::shared_ptr<Regions> regions, std::shared_ptr<Native> native);
  // Messages that name it are refused from now on. Its key for network cards is void, and who uses that loses the connection: comm
  // has asked the peers to stop before.
  ~UcxLocalRegion() override;
  Result<Blob> exported() override;
  Result<std::vector<NativeFields>> native(std::size_t offset, std::size_t bytes) const override;
  // By a key, between processes of a host, UCX copies itself (cuda_ipc, rocm_ipc), also beside network cards (xpmem).
  [[nodiscard]] bool peer_moves() const noexcept override { return handle_ != nullptr; }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(view_.span.data); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return view_.span.bytes; }
  [[nodiscard]] bool writable() const noexcept { return view_.access == Access::read_write; }
  [[nodiscard]] ucp_mem_h handle() const noexcept { return handle_; }
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }

 private:
  UcxLocalRegion(const RegionView& view, std::shared_ptr<const LibraryContext> context, std::shared_ptr<Regions> regions,
                 std::shared_ptr<Native> native) noexcept
      : LocalRegion(view), context_(std::move(context)), regions_(std::move(regions)), native_(std::move(native)) {}

  std::shared_ptr<const LibraryContext> context_;
  std::shared_ptr<Regions> regions_;
  std::uint64_t id_ = 0;  // 0: not exported yet
  MemoryKind kind_ = MemoryKind::host;
  ucp_mem_h handle_ = nullptr;  // none for a region of no bytes, and for host memory without network cards
  Bytes exported_;              // packed once
  std::shared_ptr<Native> native_;
  mutable std::unique_ptr<NativeRegion> for_programs_;  // once they were told of it
};

class UcxRemoteRegion final : public RemoteRegion {
 public:
  // `direct`: the key is used, not the number.
  static Result<std::unique_ptr<RemoteRegion>> create(const RegionKey& key, std::shared_ptr<Worker> worker, bool direct);
  ~UcxRemoteRegion() override;
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] std::uint64_t address() const noexcept { return address_; }
  [[nodiscard]] ucp_rkey_h key() const noexcept { return key_; }
  [[nodiscard]] bool writable() const noexcept override { return access_ == Access::read_write; }
  [[nodiscard]] MemoryKind kind() const noexcept { return kind_; }

 private:
  UcxRemoteRegion(const RegionKey& key, std::shared_ptr<Worker> worker) noexcept
      : RemoteRegion(key.bytes),
        worker_(std::move(worker)),
        id_(key.id),
        address_(key.address),
        access_(key.access),
        kind_(key.kind) {}

  std::shared_ptr<Worker> worker_;
  std::uint64_t id_;
  std::uint64_t address_;
  Access access_;
  MemoryKind kind_;
  ucp_rkey_h key_ = nullptr;
};

inline const UcxLocalRegion& local_of(const Run& run) noexcept { return static_cast<const UcxLocalRegion&>(*run.local); }
inline const UcxRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const UcxRemoteRegion&>(*run.remote); }

}  // namespace hmc::ucx
