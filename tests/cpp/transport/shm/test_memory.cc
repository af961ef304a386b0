// What a peer's blobs and descriptors may say, and what is refused.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testing.h"
#include "transport/one_transport.h"
#include "transport/shm/address.h"
#include "transport/shm/channel_memory.h"
#include "transport/shm/files.h"
#include "transport/shm/region.h"

namespace hmc::testing {
namespace {

using shm::ChannelMemory;

TEST(ShmMemory, UnsealedOrSmallOrForeignFilesAreRefused) {
  EXPECT_TRUE(verify_sealed(memfd(8192, F_SEAL_SHRINK).get(), 8192).ok());
  EXPECT_EQ(verify_sealed(memfd(8192, 0).get(), 8192).status().code(), Code::protocol);
  EXPECT_EQ(verify_sealed(memfd(8192, F_SEAL_GROW).get(), 8192).status().code(), Code::protocol);
  EXPECT_EQ(verify_sealed(memfd(8191, F_SEAL_SHRINK).get(), 8192).status().code(), Code::protocol);
  EXPECT_EQ(verify_sealed(memfd(8192, F_SEAL_SHRINK).get(), ~std::uint64_t{0}).status().code(), Code::protocol);
  const UniqueFd null(open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(verify_sealed(null.get(), 0).status().code(), Code::protocol);
  EXPECT_FALSE(verify_sealed(-1, 0).ok());

  const shm::Sizes sizes = shm::sizes_for(0);
  EXPECT_TRUE(ChannelMemory::attach(memfd(sizes.total(), F_SEAL_SHRINK), sizes).ok());
  EXPECT_FALSE(ChannelMemory::attach(memfd(sizes.total() - 1, F_SEAL_SHRINK), sizes).ok());
  EXPECT_FALSE(ChannelMemory::attach(memfd(sizes.total(), 0), sizes).ok());
  EXPECT_FALSE(ChannelMemory::attach(memfd(sizes.total(), F_SEAL_SHRINK | F_SEAL_WRITE), sizes).ok());
}

// A process that dies while it connects: memory of the living ones is still copied between address spaces, and nobody is warned.
TEST(ShmMemory, APeerThatHasDiedSaysNothingOfOthers) {
  std::string reason;
  const auto pair = Pair::create(factory_of("shm"), reason);
  ASSERT_TRUE(pair) << reason;
  const auto foreign_both_ends = [&] { return pair->a().node->transport->capabilities().foreign_both_ends; };
  if (!foreign_both_ends()) GTEST_SKIP() << "no ptrace here";
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  TestSink sinks[2];
  Done done;
  ::testing::internal::CaptureStderr();
  {
    const auto lock = pair->a().lock();
    const auto endpoint_of = [&](Side& side, int pid, TestSink& sink) {
      PeerDomain peer = Pair::peer_domain(side.node->transport->domain());
      peer.pid = pid;
      return side.node->transport->create_endpoint(peer, sink);
    };
    const auto victim = endpoint_of(pair->a(), dead, sinks[0]);
    const auto other = endpoint_of(pair->b(), getpid(), sinks[1]);
    HMC_ASSERT_OK((*victim)->connect((*other)->address().value(), &done));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(done.done());
  EXPECT_TRUE(foreign_both_ends());
  expect_link_works(*pair);
}

TEST(ShmMemory, ImpossibleSizesAreRefused) {
  const shm::Sizes good = shm::sizes_for(0);
  EXPECT_TRUE(good.valid());
  for (std::size_t ring = 0; ring < 200U << 20; ring = ring * 2 + 4097) EXPECT_TRUE(shm::sizes_for(ring).valid()) << ring;
  const std::size_t huge = ~std::size_t{0};
  for (const auto& [signals, slot] : std::vector<std::pair<std::size_t, std::size_t>>{{0, good.slot_bytes},
                                                                                      {good.signal_bytes + 64, good.slot_bytes},
                                                                                      {good.signal_bytes / 2, good.slot_bytes},
                                                                                      {std::size_t{1} << 63, good.slot_bytes},
                                                                                      {good.signal_bytes, 0},
                                                                                      {good.signal_bytes, 4096},
                                                                                      {good.signal_bytes, 8193},
                                                                                      {good.signal_bytes, huge / 4096 * 4096},
                                                                                      {huge, huge}}) {
    shm::Sizes sizes;
    sizes.signal_bytes = signals;
    sizes.slot_bytes = slot;
    EXPECT_FALSE(sizes.valid()) << signals << " " << slot;
  }
}

TEST(ShmMemory, EveryChangedByteOfABlobKeepsTheLimits) {
  shm::AddressInfo address;
  address.sizes = shm::sizes_for(0);
  address.key = 77;
  Bytes good;
  shm::encode_address(address, good);
  Bytes region;
  shm::RegionInfo info{5, 4096, 100, Access::read_write, true, 8192};
  shm::encode_region(info, region);
  ASSERT_TRUE(shm::decode_address(good).ok());
  ASSERT_TRUE(shm::decode_region(region).ok());
  for (std::size_t at = 0; at < good.size(); ++at) {
    EXPECT_FALSE(shm::decode_address(ByteSpan(good).first(at)).ok());
    for (int value = 0; value < 256; ++value) {
      Bytes bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      if (const auto decoded = shm::decode_address(bytes); decoded.ok()) {
        Bytes again;
        shm::encode_address(*decoded, again);
        EXPECT_EQ(again, bytes);
        EXPECT_TRUE(decoded->sizes.valid());
      }
    }
  }
  for (std::size_t at = 0; at < region.size(); ++at) {
    EXPECT_FALSE(shm::decode_region(ByteSpan(region).first(at)).ok());
    for (int value = 0; value < 256; ++value) {
      Bytes bytes = region;
      bytes[at] = static_cast<std::byte>(value);
      if (const auto decoded = shm::decode_region(bytes); decoded.ok()) {
        Bytes again;
        shm::encode_region(*decoded, again);
        EXPECT_EQ(again, bytes);
        EXPECT_LE(decoded->bytes, std::uint64_t{1} << 62);
        EXPECT_LE(decoded->file_offset, std::uint64_t{1} << 62);
        EXPECT_GE(decoded->address + decoded->bytes, decoded->address);
      }
    }
  }
}

}  // namespace
}  // namespace hmc::testing
