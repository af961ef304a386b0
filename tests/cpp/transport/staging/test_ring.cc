// The memory of staging: a slot takes its pages when it is first used, here and where the ring is mirrored.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>

#include "transport/one_transport.h"
#include "transport/shm/files.h"
#include "transport/staging/ring.h"

namespace {
std::atomic<bool> memory_is_short{false};
std::atomic<int> slots_taken{0};
}  // namespace

// Instead of the C library's, whose errors nothing else brings about at will.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  const auto slot = static_cast<off_t>(hmc::staging::Geometry().slot_bytes());
  if (bytes >= slot && bytes % slot == 0) {
    if (memory_is_short) return errno = ENOSPC, -1;
    slots_taken += static_cast<int>(bytes / slot);
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

namespace hmc::testing {
namespace {

using staging::Geometry;
using staging::Ring;

std::size_t pages_of(const UniqueFd& fd) {
  struct stat info{};
  EXPECT_EQ(fstat(fd.get(), &info), 0);
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

TEST(StagingRing, GroupsOfSlotsTakeTheirPagesOnce) {
  for (const std::uint32_t slots : {2U, 3U, 6U, 8U, 64U}) {
    const Geometry geometry{slots, 8192};
    const auto ring = Ring::allocate(geometry).value();
    EXPECT_EQ(pages_of(ring->fd()), 0U);
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      HMC_EXPECT_OK(ring->reserve(slot));
      const std::uint32_t taken = std::min(std::bit_ceil(slot + 1), slots);
      EXPECT_EQ(pages_of(ring->fd()), taken * geometry.slot_bytes()) << slot << " of " << slots;
    }
    for (const std::uint32_t slot : {slots - 1, 0U}) HMC_EXPECT_OK(ring->reserve(slot));
    EXPECT_EQ(pages_of(ring->fd()), geometry.bytes());
  }
}

TEST(StagingRing, AGroupOutOfOrderTakesItsOwnPages) {
  const Geometry geometry{8, 8192};
  const auto ring = Ring::allocate(geometry).value();
  HMC_EXPECT_OK(ring->reserve(3));
  EXPECT_EQ(pages_of(ring->fd()), 2 * geometry.slot_bytes());
  fill_pattern({ring->payload(2), 2 * geometry.slot_bytes()}, 7);
  EXPECT_EQ(pages_of(ring->fd()), 2 * geometry.slot_bytes());
  EXPECT_EQ(first_mismatch({ring->payload(2), 2 * geometry.slot_bytes()}, 7), -1);
}

TEST(StagingRing, ThePeerSeesTheSamePages) {
  const Geometry geometry{4, 8192};
  const auto ring = Ring::allocate(geometry).value();
  const auto peers = Ring::map(geometry, ring->fd().duplicate()).value();
  for (const std::uint32_t slot : {3U, 1U}) {
    HMC_EXPECT_OK(ring->reserve(slot));
    fill_pattern({ring->payload(slot), geometry.chunk_bytes}, slot);
    EXPECT_EQ(first_mismatch({peers->payload(slot), geometry.chunk_bytes}, slot), -1);
    ring->write_entry(slot, staging::max_entries - 1, {slot, 7, 9});
    const staging::Entry entry = peers->read_entry(slot, staging::max_entries - 1);
    EXPECT_EQ(entry.region, slot);
    EXPECT_EQ(entry.offset, 7U);
    EXPECT_EQ(entry.bytes, 9U);
  }
  const std::size_t taken = pages_of(ring->fd());
  HMC_EXPECT_OK(peers->reserve(0));  // its owner's to do
  EXPECT_EQ(pages_of(ring->fd()), taken);
}

TEST(StagingRing, WhatIsNoRingIsRefused) {
  const Geometry geometry{4, 8192};
  EXPECT_EQ(Ring::map(geometry, memfd(geometry.bytes() - 1, F_SEAL_SHRINK)).status().code(), Code::protocol);
  EXPECT_EQ(Ring::map(geometry, memfd(geometry.bytes(), 0)).status().code(), Code::protocol);
  EXPECT_EQ(Ring::map(geometry, UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC))).status().code(), Code::protocol);
}

class StagingSlots : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("HMC_STAGING_SHARED", GetParam(), 1);
    slots_taken = 0;
    std::string reason;
    pair_ = Pair::create(factory_of("staging"), reason);
    ASSERT_TRUE(pair_) << reason;
  }
  void TearDown() override { unsetenv("HMC_STAGING_SHARED"); }
  Status move(std::size_t bytes, bool is_put) {
    const Area local(*pair_->a().node, bytes, false);
    const Area remote(*pair_->b().node, bytes, false);
    const Area& source = is_put ? local : remote;
    const Area& target = is_put ? remote : local;
    fill_pattern(source.span(), bytes);
    const auto imported = pair_->import(pair_->a(), remote);
    Transfer transfer(pair_->a(), local, *imported);
    HMC_TRY(is_put ? transfer.put() : transfer.get());
    if (!pair_->until([&] { return transfer.done.done(); })) return Status(Code::timeout, "the transfer did not end");
    HMC_TRY(Status(transfer.done.status()));
    EXPECT_EQ(first_mismatch(target.span(), bytes), -1);
    EXPECT_TRUE(target.guards_intact());
    return {};
  }

  std::unique_ptr<Pair> pair_;
};

TEST_P(StagingSlots, APeerTakesWhatItsTransfersNeed) {
  const int rings = GetParam()[0] == '1' ? 1 : 2;  // the mirror's too
  EXPECT_EQ(slots_taken, 0);
  for (const bool is_put : {true, false, true}) {
    HMC_EXPECT_OK(move(70'001, is_put));
    EXPECT_EQ(slots_taken, rings);
  }
  const auto all = static_cast<int>(Geometry().slots) * rings;
  HMC_EXPECT_OK(move(Geometry().bytes() + 4097, true));
  EXPECT_LE(slots_taken, all);
  EXPECT_GT(slots_taken, rings);
}

TEST_P(StagingSlots, WithoutMemoryForASlotTheTransferFailsAndTheNextDoesNot) {
  for (const bool is_put : {true, false}) {
    memory_is_short = true;
    EXPECT_EQ(move(Geometry().bytes() + 1, is_put).code(), Code::out_of_memory);
    memory_is_short = false;
  }
  for (const bool is_put : {true, false}) HMC_EXPECT_OK(move(Geometry().bytes() + 1, is_put));
}

// A slot that is in use, and no memory for another: what was begun ends, and the transfer fails.
TEST_P(StagingSlots, WithoutMemoryForAnotherSlotTheTransferFails) {
  HMC_EXPECT_OK(move(70'001, true));
  memory_is_short = true;
  EXPECT_EQ(move(Geometry().bytes() + 1, true).code(), Code::out_of_memory);
  EXPECT_EQ(move(Geometry().bytes() + 1, false).code(), Code::out_of_memory);
  memory_is_short = false;
  HMC_EXPECT_OK(move(Geometry().bytes() + 1, true));
  HMC_EXPECT_OK(move(Geometry().bytes() + 1, false));
}

INSTANTIATE_TEST_SUITE_P(Rings, StagingSlots, ::testing::Values("1", "0"),
                         [](const auto& info) { return info.param[0] == '1' ? "shared" : "carried"; });

}  // namespace
}  // namespace hmc::testing
