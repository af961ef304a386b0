#include "transport/ipc/region.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/wire.h"
#include "transport/ipc/host_region.h"

namespace hmc::ipc {

namespace {

constexpr std::size_t max_device_text = 32;
constexpr std::size_t max_handle = 4096;
constexpr std::ptrdiff_t max_reason = 512;
constexpr std::ptrdiff_t handle_bytes = 64;
constexpr std::ptrdiff_t id_bytes = 8;

}  // namespace

Bytes encode_region(Kind kind, const DeviceSpan& span, ByteSpan handle, std::uint64_t number) {
  Bytes bytes;
  WireWriter(bytes).u8(static_cast<std::uint8_t>(kind)).text(span.device.vendor()).bytes(handle).u64(span.bytes).u64(number);
  return bytes;
}

Result<Blob> Region::exported() {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(view_.span.device));
  Kind kind = view_.transient ? Kind::message : Kind::buffer;
  Blob pieces;
  if (!handle_) {
    auto handle = runtime->sharing().export_handle(view_.span, HandleKind::ipc);
    if (handle.ok()) {
      handle_ = std::move(handle->bytes);
    } else if (view_.transient || handle.status().code() == Code::invalid_argument) {
      return handle.status();
    } else {
      // Descriptors are scarce, so they are made for each importer and not kept.
      auto made = runtime->sharing().export_handle(view_.span, HandleKind::chunks);
      kind = made.ok() ? Kind::pieces : Kind::unshared;
      if (made.ok()) {
        pieces = std::move(*made);
      } else {
        const std::string reason = std::string(handle.status().message()) + ", and " + std::string(made.status().message());
        const ByteSpan text = std::as_bytes(std::span(reason));
        pieces.bytes.assign(text.begin(), text.begin() + std::min<std::ptrdiff_t>(max_reason, std::ssize(text)));
      }
    }
  }
  std::uint64_t number = 0;
  if (!view_.transient) {
    HMC_ASSIGN(number, export_.id());
  }
  return Blob{encode_region(kind, view_.span, handle_ ? *handle_ : pieces.bytes, number), std::move(pieces.fds)};
}

Result<std::unique_ptr<RemoteRegion>> ImportedRegion::import(const Blob& exported, const ImportContext& context) {
  WireReader reader(exported.bytes);
  const std::uint8_t kind = reader.u8();
  if (kind == static_cast<std::uint8_t>(Kind::host)) return ImportedHostRegion::import(exported, context);
  std::string vendor = reader.text(max_device_text);
  const ByteSpan bytes = reader.bytes(max_handle);
  const std::uint64_t size = reader.u64();
  const std::uint64_t number = reader.u64();
  const bool pieces = kind == static_cast<std::uint8_t>(Kind::pieces);
  if (!reader.finish() || kind > static_cast<std::uint8_t>(Kind::unshared) || (!pieces && !exported.fds.empty())) {
    return Status(Code::protocol, "malformed region of device memory");
  }
  Blob handle;
  handle.bytes.assign(bytes.begin(), bytes.end());
  for (const UniqueFd& fd : exported.fds) {
    handle.fds.push_back(fd.duplicate());
    if (!handle.fds.back()) return errno_status("keep the descriptors of a peer's memory", errno);
  }
  return std::unique_ptr<RemoteRegion>(std::make_unique<ImportedDeviceRegion>(
      static_cast<Kind>(kind), std::move(vendor), std::move(handle), static_cast<std::size_t>(size), number, context.cache));
}

void MappingCache::keep(ByteSpan handle, std::shared_ptr<Allocation> mapping) {
  // The same allocation however it was sliced: the handle proper comes first, and the id last.
  Bytes key(handle.begin(), handle.begin() + std::min<std::ptrdiff_t>(handle_bytes, std::ssize(handle)));
  key.insert(key.end(), handle.end() - std::min<std::ptrdiff_t>(id_bytes, std::ssize(handle)), handle.end());
  const std::lock_guard guard(mutex_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.first == key; });
  if (entries_.size() == most) entries_.pop_front();
  entries_.emplace_back(std::move(key), std::move(mapping));
}

bool MappingCache::clear() {
  const std::lock_guard guard(mutex_);
  return !std::exchange(entries_, {}).empty();
}

Result<std::shared_ptr<Allocation>> ImportedDeviceRegion::map(const Device& device) {
  if (device.vendor() != vendor_) {
    return Status(Code::invalid_argument, "memory of a " + vendor_ + " device cannot be mapped for " + device.str());
  }
  if (kind_ == Kind::unshared) {
    return Status(Code::unsupported, std::string(reinterpret_cast<const char*>(handle_.bytes.data()), handle_.bytes.size()));
  }
  if (kind_ == Kind::pieces && !mappings_.empty()) {
    const auto& known = mappings_.begin()->second;
    HMC_TRY(known->allow(device.index()));
    return known;
  }
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  const HandleKind kind = kind_ == Kind::pieces ? HandleKind::chunks : HandleKind::ipc;
  auto mapped = runtime->sharing().import_handle(device.index(), handle_, kind);
  // A vendor refuses to map memory again whose former allocation is still mapped, as one that is kept may be.
  if (!mapped.ok() && cache_ && cache_->clear()) mapped = runtime->sharing().import_handle(device.index(), handle_, kind);
  HMC_ASSIGN(std::shared_ptr<Allocation> made, std::move(mapped));
  if (made->span().bytes != bytes_) return Status(Code::protocol, "the peer's handle is of another size than its region");
  handle_.fds.clear();
  if (kind_ == Kind::message && cache_) cache_->keep(handle_.bytes, made);
  return made;
}

Result<DeviceSpan> ImportedDeviceRegion::on(const Device& device, bool) {
  const std::lock_guard guard(mutex_);
  auto found = mappings_.find(device);
  if (found == mappings_.end()) {
    HMC_ASSIGN(auto made, map(device));
    found = mappings_.emplace(device, std::move(made)).first;
  }
  DeviceSpan span = found->second->span();
  span.device = device;
  return span;
}

// Does not wait for a mapping that is being made: the engine lock is held.
LoadableBytes ImportedDeviceRegion::loadable(const Device& by) const {
  const std::unique_lock guard(mutex_, std::try_to_lock);
  if (!guard) return {};
  const auto found = mappings_.find(by);
  if (found == mappings_.end()) return {};
  const DeviceSpan span = found->second->span();
  return {{static_cast<const std::byte*>(span.data), span.bytes}, found->second};
}

}  // namespace hmc::ipc
