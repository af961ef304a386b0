// The memory of staging: the slots of a shared ring take their pages when they are first used, and no store is refused for want of
// one.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "transport/one_transport.h"
#include "transport/shm/files.h"
#include "transport/staging/ring.h"

namespace {
std::atomic<bool> memory_is_short{false};
std::atomic<int> slots_taken{0}, times_refused{0};
}  // namespace

// Instead of the C library's, whose errors nothing else brings about at will.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  const auto slot = static_cast<off_t>(hmc::staging::Geometry().slot_bytes());
  if (bytes >= slot && bytes % slot == 0) {
    if (memory_is_short) {
      ++times_refused;
      return errno = ENOSPC, -1;
    }
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
    const auto ring = Ring::allocate(geometry, true).value();
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
  const auto ring = Ring::allocate(geometry, true).value();
  HMC_EXPECT_OK(ring->reserve(3));
  EXPECT_EQ(pages_of(ring->fd()), 2 * geometry.slot_bytes());
  fill_pattern({ring->payload(2), 2 * geometry.slot_bytes()}, 7);
  EXPECT_EQ(pages_of(ring->fd()), 2 * geometry.slot_bytes());
  EXPECT_EQ(first_mismatch({ring->payload(2), 2 * geometry.slot_bytes()}, 7), -1);
}

TEST(StagingRing, WhatWasRefusedIsAskedForAgain) {
  const auto ring = Ring::allocate(Geometry(), true).value();
  memory_is_short = true;
  EXPECT_EQ(ring->reserve(0).code(), Code::out_of_memory);
  EXPECT_FALSE(ring->usable());
  memory_is_short = false;
  HMC_EXPECT_OK(ring->reserve(0));  // at once, as there is none
  memory_is_short = true;
  times_refused = 0;
  const auto began = Deadline::Clock::now();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ring->reserve(1).code(), Code::out_of_memory);
  EXPECT_LE(times_refused, (Deadline::Clock::now() - began) / std::chrono::milliseconds(10) + 1);
  memory_is_short = false;
  EXPECT_TRUE(ring->usable());
  HMC_EXPECT_OK(ring->reserve(0));
  for (const Deadline end = Deadline::after_seconds(30); !ring->reserve(1).ok();) ASSERT_FALSE(end.passed());
}

TEST(StagingRing, ThePeerSeesTheSamePages) {
  const Geometry geometry{4, 8192};
  const auto ring = Ring::allocate(geometry, true).value();
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
}

// A mirror is such a ring. The carrier stores into it without a call of reserve().
TEST(StagingRing, OneThatIsNotSharedHasNothingToReserve) {
  const Geometry geometry{8, 8192};
  const auto ring = Ring::allocate(geometry, false).value();
  EXPECT_FALSE(ring->fd());
  HMC_EXPECT_OK(ring->reserve(7));
  std::vector<unsigned char> resident(geometry.bytes() / Geometry::page_bytes());
  ASSERT_EQ(mincore(ring->span().data, geometry.bytes(), resident.data()), 0);
  EXPECT_TRUE(std::ranges::none_of(resident, [](unsigned char page) { return (page & 1) != 0; }));
  fill_pattern({ring->payload(0), geometry.bytes()}, 7);
  EXPECT_EQ(first_mismatch({ring->payload(0), geometry.bytes()}, 7), -1);
}

TEST(StagingRing, ChunksAreOfWholePages) {
  const std::uint32_t page = Geometry::page_bytes();
  for (const std::uint32_t bytes : {page, 3 * page, 16U << 20}) {
    EXPECT_TRUE((Geometry{8, bytes}.valid())) << bytes;
    EXPECT_TRUE((Geometry{8, bytes}.of_whole_pages())) << bytes;
  }
  for (const std::uint32_t bytes : {page - 1, page + page / 2}) EXPECT_FALSE((Geometry{8, bytes}.of_whole_pages())) << bytes;
  for (const std::uint32_t bytes : {0U, (16U << 20) + page}) EXPECT_FALSE((Geometry{8, bytes}.valid())) << bytes;
  for (const std::uint32_t slots : {0U, 1U, 65U}) EXPECT_FALSE((Geometry{slots, page}.valid())) << slots;
}

TEST(StagingRing, AnotherFileIsRefused) {
  const Geometry geometry{4, 8192};
  EXPECT_EQ(Ring::map(geometry, memfd(geometry.bytes() - 1, F_SEAL_SHRINK)).status().code(), Code::protocol);
  EXPECT_EQ(Ring::map(geometry, memfd(geometry.bytes(), 0)).status().code(), Code::protocol);
  EXPECT_EQ(Ring::map(geometry, UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC))).status().code(), Code::protocol);
}

// Bytes of shared memory that this process has touched.
std::size_t shared_memory_touched() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stoul(line.substr(9)) * 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no RssShmem";
  return 0;
}

class StagingSlots : public ::testing::Test {
 protected:
  explicit StagingSlots(const char* shared = "1") { setenv("HMC_STAGING_SHARED", shared, 1); }
  void SetUp() override {
    slots_taken = 0;
    std::string reason;
    pair_ = Pair::create(factory_of("staging"), reason);
    ASSERT_TRUE(pair_) << reason;
  }
  void TearDown() override {
    memory_is_short = false;
    unsetenv("HMC_STAGING_SHARED");
  }
  // `at_once` transfers of so many bytes each, side by side in memory.
  Status move(std::size_t bytes, bool is_put, std::size_t at_once = 1) {
    const Area local(*pair_->a().node, at_once * bytes, false);
    const Area remote(*pair_->b().node, at_once * bytes, false);
    const Area& source = is_put ? local : remote;
    const Area& target = is_put ? remote : local;
    fill_pattern(source.span(), bytes);
    const auto imported = pair_->import(pair_->a(), remote);
    std::deque<Transfer> transfers;
    for (std::size_t at = 0; at < at_once * bytes; at += bytes) {
      Transfer& transfer = transfers.emplace_back(pair_->a(), local, *imported, std::vector<std::uint64_t>{at},
                                                  std::vector<std::uint64_t>{at}, bytes);
      HMC_TRY(is_put ? transfer.put() : transfer.get());
    }
    for (Transfer& transfer : transfers) {
      if (!pair_->until([&] { return transfer.done.done(); })) return Status(Code::timeout, "the transfer did not end");
    }
    for (Transfer& transfer : transfers) HMC_TRY(Status(transfer.done.status()));
    EXPECT_EQ(first_mismatch(target.span(), bytes), -1);
    EXPECT_TRUE(target.guards_intact());
    return {};
  }

  std::unique_ptr<Pair> pair_;
};

TEST_F(StagingSlots, APeerTakesWhatItsTransfersNeed) {
  EXPECT_EQ(slots_taken, 0);
  for (const bool is_put : {true, false, true}) {
    HMC_EXPECT_OK(move(70'001, is_put));
    EXPECT_EQ(slots_taken, 1);
  }
  HMC_EXPECT_OK(move(Geometry().bytes() + 4097, true));
  EXPECT_LE(slots_taken, static_cast<int>(Geometry().slots));
  EXPECT_GT(slots_taken, 1);
}

TEST_F(StagingSlots, WithoutMemoryForAnyTheTransferFailsAndTheNextDoesNot) {
  for (const bool is_put : {true, false}) {
    memory_is_short = true;
    EXPECT_EQ(move(Geometry().bytes() + 1, is_put).code(), Code::out_of_memory);
    memory_is_short = false;
  }
  for (const bool is_put : {true, false}) HMC_EXPECT_OK(move(Geometry().bytes() + 1, is_put));
}

TEST_F(StagingSlots, WithoutMemoryForAnotherTransfersTakeTurns) {
  HMC_EXPECT_OK(move(70'001, true));
  memory_is_short = true;
  for (const bool is_put : {true, false}) {
    HMC_EXPECT_OK(move(4097, is_put, 8));
    HMC_EXPECT_OK(move(Geometry().bytes() + 1, is_put));
  }
  EXPECT_EQ(slots_taken, 1);
  memory_is_short = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // until the system is asked again
  HMC_EXPECT_OK(move(Geometry().bytes() + 1, true));
  EXPECT_GT(slots_taken, 1);
}

// The carrier stores into the mirror before this side knows of it.
class CarriedStagingSlots : public StagingSlots {
 protected:
  CarriedStagingSlots() : StagingSlots("0") {}
};

TEST_F(CarriedStagingSlots, APeerTouchesWhatItsTransfersNeed) {
  memory_is_short = true;  // nothing is asked for
  const std::size_t before = shared_memory_touched();
  for (const bool is_put : {true, false, true}) HMC_EXPECT_OK(move(70'001, is_put));
  EXPECT_LT(shared_memory_touched(), before + (std::size_t{1} << 20));
  for (const bool is_put : {true, false}) {
    HMC_EXPECT_OK(move(4097, is_put, 8));
    HMC_EXPECT_OK(move(Geometry().bytes() + 1, is_put));
  }
}

}  // namespace
}  // namespace hmc::testing
