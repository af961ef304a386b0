// The peer's puts, whose parts come on several streams in any order.
#include "transport/tcp/incoming_puts.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "testing.h"

namespace hmc::testing {
namespace {

class IncomingPutsTest : public ::testing::Test {
 protected:
  [[nodiscard]] tcp::Header slice(std::uint32_t length) {
    tcp::Header header;
    header.type = tcp::FrameType::put;
    header.extents = 1;
    header.length = length;
    header.op = 5;
    header.a = export_.id().value();
    return header;
  }
  [[nodiscard]] bool begin(std::uint32_t length, std::uint64_t offset) {
    const std::array<tcp::Extent, 1> extents{{{offset, length}}};
    return puts_.begin(slice(length), extents);
  }
  [[nodiscard]] bool end(std::uint64_t total) {
    tcp::Header header;
    header.type = tcp::FrameType::put_end;
    header.op = 5;
    header.a = total;
    return puts_.ended(header, {}, arrived_);
  }

  std::array<std::byte, 1000> bytes_{};
  std::shared_ptr<ServedRegions> regions_ = std::make_shared<ServedRegions>();
  ServedExport export_{RegionView{{bytes_.data(), bytes_.size(), Device::cpu()}}, regions_};
  tcp::IncomingPuts puts_{regions_};
  std::optional<tcp::IncomingPuts::Arrived> arrived_;
};

// Its number names the next put from then on, and the slice's ranges were not checked for that.
TEST_F(IncomingPutsTest, NoneEndsWhileASliceOfItIsUnderWay) {
  ASSERT_TRUE(begin(100, 950));  // beyond the region: refused
  ASSERT_TRUE(begin(200, std::uint64_t{1} << 40));
  ASSERT_TRUE(puts_.received(slice(100), arrived_));
  EXPECT_FALSE(end(100));
  EXPECT_FALSE(arrived_);
  EXPECT_EQ(puts_.target(slice(200)), nullptr);
}

TEST_F(IncomingPutsTest, NoSliceBeginsBeyondTheEnd) {
  ASSERT_TRUE(end(100));
  ASSERT_TRUE(begin(60, 0));
  EXPECT_NE(puts_.target(slice(60)), nullptr);
  EXPECT_FALSE(begin(41, 60));
}

TEST_F(IncomingPutsTest, PartsComeInAnyOrder) {
  ASSERT_TRUE(begin(100, 0));
  ASSERT_TRUE(begin(200, 100));
  ASSERT_TRUE(puts_.received(slice(200), arrived_));
  ASSERT_TRUE(end(300));
  EXPECT_FALSE(arrived_);
  ASSERT_TRUE(puts_.received(slice(100), arrived_));
  ASSERT_TRUE(arrived_);
  EXPECT_EQ(arrived_->number, 5U);
  EXPECT_EQ(arrived_->refusal, tcp::Refusal::none);
}

}  // namespace
}  // namespace hmc::testing
