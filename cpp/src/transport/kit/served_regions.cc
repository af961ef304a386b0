#include "transport/kit/served_regions.h"

#include <limits>

#include "base/random.h"
#include "base/wire.h"

namespace hmc {

namespace {

constexpr std::uint16_t key_version = 1;

}  // namespace

Status read_only_target() { return Status(Code::invalid_argument, "put into a region that its owner exported for reading only"); }

Result<std::shared_ptr<ServedRegion>> ServedRegions::hold(std::uint64_t id, bool to_write) const {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return Status(Code::stale, "the region was deregistered");
  if (to_write && !found->second->writable()) return read_only_target();
  return found->second;
}

ServedExport::ServedExport(const RegionView& view, std::weak_ptr<ServedRegions> table)
    : table_(std::move(table)), region_(std::make_shared<ServedRegion>()) {
  region_->view = view;
}

ServedExport::~ServedExport() {
  if (id_ == 0) return;
  if (const auto table = table_.lock()) table->regions_.erase(id_);
  for (ServedCopies* copies : region_->users) copies->see_out();
  region_->view.block.reset();
}

Result<std::uint64_t> ServedExport::id() {
  const auto table = table_.lock();
  if (!table) return Status(Code::closed, "the transport of this region is closed");
  while (id_ == 0) {
    const std::uint64_t id = random_u64();
    if (id != 0 && table->regions_.emplace(id, region_).second) id_ = id;
  }
  return id_;
}

Bytes encode_served(const ServedKey& key) {
  Bytes out;
  WireWriter(out).u16(key_version).u64(key.id).u64(key.bytes).u8(static_cast<std::uint8_t>(key.access));
  return out;
}

Result<ServedKey> decode_served(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint16_t version = reader.u16();
  ServedKey key;
  key.id = reader.u64();
  key.bytes = reader.u64();
  key.access = static_cast<Access>(reader.u8());
  const bool known = key.access == Access::read || key.access == Access::read_write;
  if (!reader.finish() || version != key_version || !known || key.bytes > std::numeric_limits<std::size_t>::max() / 2) {
    return Status(Code::protocol, "the peer's region is malformed");
  }
  return key;
}

Result<Blob> ServedLocalRegion::exported() {
  HMC_ASSIGN(const std::uint64_t id, export_.id());
  Blob blob;
  blob.bytes = encode_served({id, view_.span.bytes, view_.access});
  return blob;
}

Result<std::unique_ptr<RemoteRegion>> ServedRemoteRegion::import(const Blob& exported) {
  HMC_ASSIGN(const ServedKey key, decode_served(exported.bytes));
  if (!exported.fds.empty()) return Status(Code::protocol, "the peer's region comes with descriptors");
  return std::unique_ptr<RemoteRegion>(std::make_unique<ServedRemoteRegion>(key));
}

}  // namespace hmc
