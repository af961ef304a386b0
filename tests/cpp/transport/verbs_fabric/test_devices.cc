// Memory of devices over verbs: registered, tried, put into and read from by the card, while the host cannot touch it.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

namespace hmc::testing {
namespace {

const Device cuda = Device::parse("cuda:0").value();
const Device mlu = Device::parse("mlu:0").value();

class VerbsDevices : public OnFabric {
 protected:
  // Puts into and gets from memory of a device, from the host and from another device, at every awkward size.
  void moves_every_byte() {
    const Device cpu = Device::cpu();
    for (const auto& [near, far] : {std::pair(cpu, cuda), std::pair(cuda, cpu), std::pair(cuda, mlu), std::pair(mlu, cuda)}) {
      for (const std::size_t bytes : awkward_sizes()) {
        if (bytes == 0) continue;
        const std::size_t room = bytes + 300;
        const AnyArea local(*pair->a().node, room, near), back(*pair->a().node, room, near), target(*pair->b().node, room, far);
        for (const AnyArea* area : {&local, &back, &target}) HMC_ASSERT_OK(Status(area->status));
        local.fill(bytes);
        target.fill(1);
        back.fill(2);
        const auto remote = target.imported(pair->a()).value();
        Move put(pair->a(), local, *remote, bytes, 100, 33);
        const Bytes said = pattern(20, bytes);
        const std::size_t before = pair->b().sink.signals.size();
        HMC_ASSERT_OK(put.put(said));
        ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() > before; }));
        EXPECT_EQ(pair->b().sink.signals.back(), said);
        const auto sent = pattern(room, bytes);
        auto expected = pattern(room, 1);
        std::copy_n(sent.begin() + 100, bytes, expected.begin() + 33);
        EXPECT_TRUE(same_bytes(target.bytes(), expected)) << near.str() << ' ' << far.str() << ' ' << bytes;
        ends(put);
        Move get(pair->a(), back, *remote, bytes, 7, 33);
        HMC_ASSERT_OK(get.get());
        ends(get);
        auto returned = pattern(room, 2);
        std::copy_n(sent.begin() + 100, bytes, returned.begin() + 7);
        EXPECT_TRUE(same_bytes(back.bytes(), returned)) << near.str() << ' ' << far.str() << ' ' << bytes;
      }
    }
  }
  Reach reach(const Device& local, const Device& remote) {
    const Bytes domain = pair->b().node->transport->domain();
    const auto lock = pair->a().lock();
    return pair->a().node->transport->reach(same_process_domain(domain), local, remote);
  }
};

TEST_F(VerbsDevices, ByDmaBuf) {
  fabric().configure({.dma_buf = 1});
  connect();
  moves_every_byte();
  EXPECT_TRUE(reach(cuda, mlu).ok) << reach(cuda, mlu).reason;
  EXPECT_FALSE(reach(cuda, Device::cpu()).transient);
}

TEST_F(VerbsDevices, ByAddress) {
  setenv("HMC_VERBS_PEER_MEMORY", "1", 1);
  fabric().configure({.peer_memory = 1});
  connect();
  moves_every_byte();
}

// Where a dma-buf is refused, the address is tried.
TEST_F(VerbsDevices, ByTheOtherWay) {
  setenv("HMC_VERBS_PEER_MEMORY", "1", 1);
  fabric().configure({.peer_memory = 1});
  connect();
  const AnyArea area(*pair->a().node, 10'000, cuda);
  HMC_EXPECT_OK(Status(area.status));
}

TEST_F(VerbsDevices, ByNone) {
  connect();
  EXPECT_FALSE(reach(cuda, Device::cpu()).ok);
  EXPECT_NE(reach(cuda, Device::cpu()).reason.find("fabric0 does not reach memory of cuda:0"), std::string::npos);
  EXPECT_FALSE(reach(Device::cpu(), cuda).ok);
  const AnyArea area(*pair->a().node, 10'000, cuda);
  EXPECT_EQ(area.status.code(), Code::unsupported) << area.status.str();
}

// A card that takes what it is given and moves nothing is found out before anything is trusted to it.
TEST_F(VerbsDevices, ACardThatLies) {
  setenv("HMC_VERBS_PEER_MEMORY", "1", 1);
  fabric().configure({.dma_buf = 1, .peer_memory = 1, .lying = 1});
  connect();
  const AnyArea area(*pair->a().node, 10'000, cuda);
  EXPECT_EQ(area.status.code(), Code::unsupported) << area.status.str();
  EXPECT_NE(area.status.str().find("did not arrive"), std::string::npos) << area.status.str();
  EXPECT_NE(area.status.str().find("by its address"), std::string::npos) << area.status.str();
}

TEST_F(VerbsDevices, ReadOnlyStaysSo) {
  fabric().configure({.dma_buf = 1});
  connect();
  const Memory memory = Memory::allocate(10'000, cuda).value();
  auto region = pair->b().node->transport->register_region({{memory.data(), 10'000, cuda}, memory.block(), Access::read}).value();
  const AnyArea local(*pair->a().node, 10'000, Device::cpu());
  std::unique_ptr<RemoteRegion> remote;
  {
    const auto lock = pair->b().lock();
    const Blob blob = region->exported().value();
    remote = pair->a().endpoint->import_region(blob).value();
  }
  Move put(pair->a(), local, *remote, 10'000);
  EXPECT_EQ(put.put().code(), Code::invalid_argument);
  Move get(pair->a(), local, *remote, 10'000);
  HMC_ASSERT_OK(get.get());
  ends(get);
  const auto lock = pair->b().lock();
  region.reset();
}

// 256 MiB of Cambricon's memory may be registered in one process, over all cards.
TEST_F(VerbsDevices, ABudgetIsKept) {
  setenv("HMC_NICS", "fabric0", 1);
  fabric().configure({.dma_buf = 1});
  connect();
  constexpr std::size_t mebi = 1 << 20;
  auto first = std::make_unique<AnyArea>(*pair->a().node, 200 * mebi, mlu);
  HMC_ASSERT_OK(Status(first->status));
  const AnyArea second(*pair->b().node, 57 * mebi, mlu);
  EXPECT_EQ(second.status.code(), Code::would_block);
  EXPECT_NE(second.status.str().find("268435456"), std::string::npos) << second.status.str();
  EXPECT_NE(second.status.str().find("close buffers"), std::string::npos) << second.status.str();
  const AnyArea never(*pair->a().node, 257 * mebi, mlu);
  EXPECT_EQ(never.status.code(), Code::unsupported);
  EXPECT_NE(never.status.str().find("too many"), std::string::npos) << never.status.str();
  const AnyArea fits(*pair->a().node, 56 * mebi, mlu), other(*pair->a().node, 300 * mebi, cuda);
  HMC_EXPECT_OK(Status(fits.status));
  HMC_EXPECT_OK(Status(other.status));
  first.reset();
  const AnyArea third(*pair->a().node, 200 * mebi, mlu);
  HMC_EXPECT_OK(Status(third.status));
}

class Gate final : public StreamPoint {
 public:
  Result<bool> reached() override { return open; }
  bool open = false;
};

TEST_F(VerbsDevices, BehindAStream) {
  fabric().configure({.dma_buf = 1});
  connect();
  const AnyArea local(*pair->a().node, 100'000, cuda), target(*pair->b().node, 100'000, cuda);
  local.fill(1);
  target.fill(2);
  const auto remote = target.imported(pair->a()).value();
  Gate gate, never;
  Move put(pair->a(), local, *remote, 100'000), cancelled(pair->a(), local, *remote, 100'000);
  HMC_ASSERT_OK(put.put({}, &gate));
  HMC_ASSERT_OK(cancelled.put({}, &never));
  pair->settle();
  EXPECT_FALSE(put.done.done());
  EXPECT_TRUE(same_bytes(target.bytes(), pattern(100'000, 2)));
  local.fill(3);  // what the stream does
  gate.open = true;
  ends(put);
  EXPECT_TRUE(same_bytes(target.bytes(), pattern(100'000, 3)));
  {
    const auto lock = pair->a().lock();
    HMC_EXPECT_OK(pair->a().endpoint->cancel(&cancelled.done));
  }
  EXPECT_EQ(cancelled.done.status().code(), Code::cancelled);
}

}  // namespace
}  // namespace hmc::testing

#endif
