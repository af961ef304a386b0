#include "transport/shm/region.h"

#include <string>

#include "base/log.h"
#include "base/random.h"
#include "base/wire.h"

namespace hmc::shm {

namespace {

constexpr std::uint8_t export_version = 1;

}  // namespace

void encode_region(const RegionInfo& info, Bytes& out) {
  WireWriter writer(out);
  writer.u8(export_version).u8(static_cast<std::uint8_t>(info.access)).u8(info.mapped ? 1 : 0);
  writer.u64(info.id).u64(info.address).u64(info.bytes).u64(info.file_offset);
}

Result<RegionInfo> decode_region(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  const std::uint8_t access = reader.u8();
  const std::uint8_t mapped = reader.u8();
  RegionInfo info;
  info.id = reader.u64();
  info.address = reader.u64();
  info.bytes = reader.u64();
  info.file_offset = reader.u64();
  if (!reader.finish() || mapped > 1) return Status(Code::protocol, "malformed shm region");
  if (version != export_version) {
    return Status(Code::protocol,
                  "shm region of version " + std::to_string(version) + ", this is version " + std::to_string(export_version));
  }
  if (access != static_cast<std::uint8_t>(Access::read) && access != static_cast<std::uint8_t>(Access::read_write)) {
    return Status(Code::protocol, "shm region with an unknown access");
  }
  constexpr std::uint64_t limit = std::uint64_t{1} << 62;
  if (info.bytes > limit || info.file_offset > limit || info.address > UINT64_MAX - info.bytes) {
    return Status(Code::protocol, "shm region beyond any address space");
  }
  info.access = static_cast<Access>(access);
  info.mapped = mapped == 1;
  return info;
}

ShmLocalRegion::ShmLocalRegion(const RegionView& view, std::weak_ptr<RegionTable> table, bool ptrace)
    : LocalRegion(view), peer_moves_(ptrace || has_file(view)), table_(std::move(table)) {}

ShmLocalRegion::~ShmLocalRegion() {
  if (id_ == 0) return;
  if (const auto table = table_.lock()) table->erase(id_);
}

Result<Blob> ShmLocalRegion::exported() {
  const auto table = table_.lock();
  if (!table) return Status(Code::closed, "the shm transport of this region is closed");
  while (id_ == 0) {
    const std::uint64_t id = random_u64();
    if (id != 0 && table->emplace(id, this).second) id_ = id;
  }
  RegionInfo info;
  info.id = id_;
  info.address = reinterpret_cast<std::uintptr_t>(view_.span.data);
  info.bytes = view_.span.bytes;
  info.access = view_.access;
  Blob blob;
  if (has_file(view_)) {
    HMC_ASSIGN(RegionFile file, region_file(view_));
    info.mapped = true;
    info.file_offset = file.offset;
    blob.fds.push_back(std::move(file.fd));
  }
  encode_region(info, blob.bytes);
  return blob;
}

Result<std::unique_ptr<ShmRemoteRegion>> ShmRemoteRegion::import(const Blob& exported) {
  HMC_ASSIGN(const RegionInfo info, decode_region(exported.bytes));
  if (exported.fds.size() != (info.mapped ? 1U : 0U)) {
    return Status(Code::protocol, "shm region came with " + std::to_string(exported.fds.size()) +
                                      " descriptors; at this process's limit they are lost (ulimit -n)");
  }
  UniqueFd fd;
  if (info.mapped) {
    fd = exported.fds[0].duplicate();
    if (!fd) return errno_status("duplicating a memfd", errno);
  }
  return std::unique_ptr<ShmRemoteRegion>(new ShmRemoteRegion(info, std::move(fd)));
}

Status ShmRemoteRegion::prepare(const Device&) {
  if (!fd_) return {};
  auto mapping = map_region({std::move(fd_), info_.file_offset}, info_.bytes, writable());
  Status status = mapping.status();
  if (status.code() == Code::protocol) return status;
  if (status.ok()) status = mapping->pages.populate(writable());
  if (!status.ok()) {
    warn_once("shm.map", "a peer's memory could not be mapped and will be copied by slower ways: " + status.str());
    return {};
  }
  mapping_ = std::make_shared<const Mapping>(std::move(mapping->pages));
  base_ = mapping->data;
  return {};
}

}  // namespace hmc::shm
