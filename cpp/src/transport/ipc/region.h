// Regions of the ipc transport. Device memory is exported by the vendor's handle, or piece by piece where it has none, and by a
// number for those who have no device to map it with and ask its owner; CPU memory that HMC allocated by its memfd. The importer
// maps either for each of its devices that needs it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "progress/engine.h"
#include "transport/kit/served_regions.h"

namespace hmc::ipc {

class Region final : public LocalRegion {
 public:
  Region(const RegionView& view, const std::shared_ptr<ServedRegions>& served) : LocalRegion(view), export_(view, served) {}
  // bytes = wire{u8 Kind, text vendor, blob handle, u64 bytes, u64 number}, with the handle's descriptors. A message's memory is
  // described in a signal, which takes no descriptors, and is never asked for.
  Result<Blob> exported() override;
  [[nodiscard]] bool peer_moves() const noexcept override { return true; }

 private:
  std::optional<Bytes> handle_;  // the vendor's, asked for once
  ServedExport export_;
};

// How a region was exported. `unshared`: the handle is the reason why there is none. `host` is in host_region.h, `announced` in
// announced.h.
enum class Kind : std::uint8_t { buffer = 0, message = 1, pieces = 2, host = 3, unshared = 4, announced = 5 };

// What Region::exported() says.
Bytes encode_region(Kind kind, const DeviceSpan& span, ByteSpan handle, std::uint64_t number);

// Mappings that messages made, kept for the next message from the same allocation: mapping takes a hundred times as long as a short
// copy. The memory of a message is its sender's again when the message is over, so one that is kept may outlive what it maps; it is
// never used then, since an allocation that is made anew has another handle or id. ConnBuffers' mappings end with their import.
class MappingCache {
 public:
  // Any thread.
  void keep(ByteSpan handle, std::shared_ptr<Allocation> mapping);
  bool clear();  // false: it was empty

 private:
  static constexpr std::size_t most = 64;
  std::mutex mutex_;
  std::deque<std::pair<Bytes, std::shared_ptr<Allocation>>> entries_;  // the latest last
};

// What the imports of one link share.
struct ImportContext {
  std::shared_ptr<MappingCache> cache;
  std::shared_ptr<Engine> engine;
};

class ImportedRegion : public RemoteRegion {
 public:
  // Errors: protocol.
  static Result<std::unique_ptr<RemoteRegion>> import(const Blob& exported, const ImportContext& context);

  Status prepare(const Device& local) override { return on(local, false).status(); }
  // The memory as `device` here reaches it; mapped at the first call, which takes as long as that needs. Any thread. Errors:
  // invalid_argument (to be written, and exported for reading only), those of mapping it.
  virtual Result<DeviceSpan> on(const Device& device, bool to_write) = 0;
  // By which its owner knows it, whose device copies for memory of the CPU here. 0: it has none.
  [[nodiscard]] virtual std::uint64_t number() const noexcept { return 0; }

 protected:
  using RemoteRegion::RemoteRegion;
};

class ImportedDeviceRegion final : public ImportedRegion {
 public:
  ImportedDeviceRegion(Kind kind, std::string vendor, Blob handle, std::size_t bytes, std::uint64_t number,
                       std::shared_ptr<MappingCache> cache) noexcept
      : ImportedRegion(bytes),
        kind_(kind),
        vendor_(std::move(vendor)),
        number_(number),
        cache_(std::move(cache)),
        handle_(std::move(handle)) {}

  Status prepare(const Device& local) override { return local.is_cpu() && number_ != 0 ? Status() : on(local, false).status(); }
  Result<DeviceSpan> on(const Device& device, bool to_write) override;
  [[nodiscard]] std::uint64_t number() const noexcept override { return number_; }
  [[nodiscard]] LoadableBytes loadable(const Device& by) const override;
  [[nodiscard]] bool writable() const noexcept override { return true; }  // so vendors map it; comm checks the owner's access

 private:
  Result<std::shared_ptr<Allocation>> map(const Device& device);

  const Kind kind_;
  const std::string vendor_;
  const std::uint64_t number_;
  const std::shared_ptr<MappingCache> cache_;  // of the link
  mutable std::mutex mutex_;                   // of what follows
  Blob handle_;                                // its descriptors go once they are mapped
  std::map<Device, std::shared_ptr<Allocation>> mappings_;
};

}  // namespace hmc::ipc
