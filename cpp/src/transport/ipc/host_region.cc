#include "transport/ipc/host_region.h"

#include "base/wire.h"

namespace hmc::ipc {

HostRegion::~HostRegion() {
  const auto shared = shared_.lock();
  if (!shared) return;
  for (Announcer* announcer : shared->announcers) announcer->forget(*this);
}

Result<Blob> HostRegion::exported_for(Access access) const {
  RegionView view = view_;
  view.access = access;
  HMC_ASSIGN(RegionFile file, region_file(view));
  Blob blob;
  WireWriter writer(blob.bytes);
  writer.u8(static_cast<std::uint8_t>(Kind::host)).u8(static_cast<std::uint8_t>(access));
  writer.u64(file.offset).u64(view_.span.bytes);
  blob.fds.push_back(std::move(file.fd));
  return blob;
}

Result<std::unique_ptr<RemoteRegion>> ImportedHostRegion::import(const Blob& exported, const ImportContext& context) {
  WireReader reader(exported.bytes);
  reader.u8();  // Kind::host
  const std::uint8_t access = reader.u8();
  const std::uint64_t offset = reader.u64();
  const std::uint64_t bytes = reader.u64();
  const bool writable = access == static_cast<std::uint8_t>(Access::read_write);
  constexpr std::uint64_t limit = std::uint64_t{1} << 62;
  if (!reader.finish() || exported.fds.size() != 1 || (!writable && access != static_cast<std::uint8_t>(Access::read)) ||
      offset > limit || bytes == 0 || bytes > limit) {
    return Status(Code::protocol, "malformed region of CPU memory");
  }
  RegionFile file{exported.fds[0].duplicate(), offset};
  if (!file.fd) return errno_status("keep the descriptor of a peer's memory", errno);
  return std::unique_ptr<RemoteRegion>(
      new ImportedHostRegion(std::move(file), static_cast<std::size_t>(bytes), writable, context.engine));
}

// Unpinning and unmapping take long: not with the engine lock held.
ImportedHostRegion::~ImportedHostRegion() {
  if (mapped_ && engine_) engine_->retire(std::move(mapped_));
}

Status ImportedHostRegion::prepare(const Device& local) {
  HMC_ASSIGN(Mapped * mapped, map());
  const Mapping& pages = mapped->memory->pages;
  mapped->pins.pin_for(local, {{pages.data(), pages.bytes(), Device::cpu()}, mapped->memory, !writable_});
  return {};
}

Result<DeviceSpan> ImportedHostRegion::on(const Device&, bool to_write) {
  if (to_write && !writable_) {
    return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
  }
  HMC_ASSIGN(Mapped * mapped, map());
  return DeviceSpan{mapped->memory->data, bytes_, Device::cpu()};
}

Result<ImportedHostRegion::Mapped*> ImportedHostRegion::map() {
  const std::lock_guard guard(mutex_);
  if (mapped_) return mapped_.get();
  auto memory = map_region(file_, bytes_, writable_);
  if (!memory.ok()) {
    const Code code = memory.status().code() == Code::protocol ? Code::protocol : Code::unsupported;
    return Status(code, std::string(memory.status().message()), memory.status().native());
  }
  mapped_ = std::make_shared<Mapped>();
  mapped_->memory = std::make_shared<const MappedRegion>(std::move(*memory));
  file_.fd.reset();
  return mapped_.get();
}

}  // namespace hmc::ipc
