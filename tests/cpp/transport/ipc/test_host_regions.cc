// CPU memory as ipc gives it away and maps it; the device that copies is in tests/python/test_host_copies.py.
#include <fcntl.h>
#include <unistd.h>

#include "base/wire.h"
#include "transport/ipc/host_region.h"
#include "transport/one_transport.h"

namespace hmc::testing {
namespace {

constexpr std::size_t bytes = 70'001;

class HostRegions : public ::testing::Test {
 protected:
  void SetUp() override { node_ = Node::create(factory_of("ipc")).value(); }
  Result<Blob> exported(const Area& area) {
    const auto lock = node_->engine->lock();
    return area.region()->exported();
  }
  Result<std::unique_ptr<RemoteRegion>> imported(const Blob& blob) {
    const auto lock = node_->engine->lock();
    return ipc::ImportedRegion::import(blob, {nullptr, node_->engine});
  }
  void forget(std::unique_ptr<RemoteRegion>& region) {
    const auto lock = node_->engine->lock();
    region.reset();
  }

  std::unique_ptr<Node> node_;
};

TEST_F(HostRegions, TheImporterSeesTheSamePages) {
  const Area area(*node_, bytes, true);
  fill_pattern(area.span(), 3);
  auto region = imported(exported(area).value()).value();
  EXPECT_EQ(region->bytes(), bytes);
  HMC_EXPECT_OK(region->prepare(Device::cpu()));
  const DeviceSpan seen = static_cast<ipc::ImportedRegion&>(*region).on(Device::cpu(), true).value();
  EXPECT_TRUE(seen.device.is_cpu());
  EXPECT_NE(seen.data, area.data());
  const std::span<std::byte> there(static_cast<std::byte*>(seen.data), seen.bytes);
  EXPECT_EQ(first_mismatch(there, 3), -1);
  fill_pattern(there, 4);
  EXPECT_EQ(first_mismatch(area.span(), 4), -1);
  EXPECT_TRUE(area.guards_intact());
  forget(region);
  node_->engine->drop_retired();
}

TEST_F(HostRegions, WhatMayOnlyBeReadIsNotWritten) {
  const Area area(*node_, bytes, true, Access::read);
  fill_pattern(area.span(), 5);
  auto region = imported(exported(area).value()).value();
  auto& host = static_cast<ipc::ImportedRegion&>(*region);
  EXPECT_EQ(host.on(Device::cpu(), true).status().code(), Code::invalid_argument);
  const DeviceSpan seen = host.on(Device::cpu(), false).value();
  EXPECT_EQ(first_mismatch({static_cast<std::byte*>(seen.data), seen.bytes}, 5), -1);
  const UniqueFd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(read(zero.get(), seen.data, 1), -1);  // EFAULT where a store would be a fault
  forget(region);
}

TEST_F(HostRegions, OtherMemoryIsLeftToOtherTransports) {
  std::vector<std::byte> heap(bytes);
  const DeviceSpan span{heap.data(), bytes, Device::cpu()};
  EXPECT_EQ(node_->transport->register_region({span}).status().code(), Code::unsupported);
  const Memory memory = Memory::allocate(bytes).value();
  const DeviceSpan own{memory.data(), bytes, Device::cpu()};
  EXPECT_EQ(node_->transport->register_region({own, memory.block(), Access::read_write, true}).status().code(), Code::unsupported);
}

TEST_F(HostRegions, MalformedOnesAreRefused) {
  const Area area(*node_, bytes, true);
  const Blob good = exported(area).value();
  const auto refused = [&](const auto& write, bool with_file) {
    Blob blob;
    WireWriter writer(blob.bytes);
    write(writer);
    if (with_file) blob.fds.push_back(good.fds[0].duplicate());
    const auto region = imported(blob);
    const Status status = region.ok() ? (*region)->prepare(Device::cpu()) : region.status();
    EXPECT_EQ(status.code(), Code::protocol) << status.str();
  };
  refused([](WireWriter& w) { w.u8(3); }, true);
  refused([](WireWriter& w) { w.u8(3).u8(7).u64(0).u64(bytes); }, true);
  refused([](WireWriter& w) { w.u8(3).u8(1).u64(0).u64(0); }, true);
  refused([](WireWriter& w) { w.u8(3).u8(1).u64(0).u64(bytes); }, false);
  refused([](WireWriter& w) { w.u8(3).u8(1).u64(0).u64(bytes).u8(0); }, true);
  refused([](WireWriter& w) { w.u8(3).u8(1).u64(~std::uint64_t{0}).u64(bytes); }, true);
  refused([](WireWriter& w) { w.u8(3).u8(1).u64(1 << 30).u64(bytes); }, true);  // beyond the file
  refused([](WireWriter& w) { w.u8(4).u8(1).u64(0).u64(bytes); }, true);
}

}  // namespace
}  // namespace hmc::testing
