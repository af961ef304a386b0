// Regions of the shm transport: what is exported, and how an importer reaches it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "transport/host_mapping.h"
#include "transport/transport.h"

namespace hmc::shm {

class ShmLocalRegion;

// Regions that peers were told about, by id. Engine lock held.
using RegionTable = std::unordered_map<std::uint64_t, const ShmLocalRegion*>;

// What an exported Blob says, beside the memfd of a shareable region.
struct RegionInfo {
  std::uint64_t id = 0;       // random: only who was given it can name the region
  std::uint64_t address = 0;  // in the owner
  std::uint64_t bytes = 0;
  Access access = Access::read;
  bool mapped = false;            // a memfd comes along
  std::uint64_t file_offset = 0;  // of the region in it
};
void encode_region(const RegionInfo& info, Bytes& out);
Result<RegionInfo> decode_region(ByteSpan bytes);  // errors: protocol

class ShmLocalRegion final : public LocalRegion {
 public:
  // `ptrace`: peers may be able to read and write foreign memory of this process.
  ShmLocalRegion(const RegionView& view, std::weak_ptr<RegionTable> table, bool ptrace);
  ~ShmLocalRegion() override;  // later ring chunks for its id are refused
  Result<Blob> exported() override;
  [[nodiscard]] bool peer_moves() const noexcept override { return peer_moves_; }

 private:
  const bool peer_moves_;
  std::weak_ptr<RegionTable> table_;  // empty once the transport is gone
  std::uint64_t id_ = 0;              // 0: not exported yet
};

class ShmRemoteRegion final : public RemoteRegion {
 public:
  // Errors: protocol.
  static Result<std::unique_ptr<ShmRemoteRegion>> import(const Blob& exported);
  // Maps and populates a shareable region. Where the kernel refuses the mapping (limits), the region is left to the other ways.
  // Errors: protocol (the memfd is not sealed or too small).
  Status prepare(const Device& local) override;

  [[nodiscard]] LoadableBytes loadable(const Device& by) const override {
    if (!by.is_cpu()) return {};
    return {{base_, base_ == nullptr ? 0 : bytes()}, mapping_};
  }
  [[nodiscard]] std::byte* mapped() const noexcept { return base_; }  // null: not mapped
  [[nodiscard]] std::uint64_t id() const noexcept { return info_.id; }
  [[nodiscard]] std::uint64_t address() const noexcept { return info_.address; }
  [[nodiscard]] bool writable() const noexcept override { return info_.access == Access::read_write; }

 private:
  ShmRemoteRegion(const RegionInfo& info, UniqueFd fd) noexcept : RemoteRegion(info.bytes), info_(info), fd_(std::move(fd)) {}

  RegionInfo info_;
  UniqueFd fd_;  // until prepare()
  std::shared_ptr<const Mapping> mapping_;
  std::byte* base_ = nullptr;
};

}  // namespace hmc::shm
