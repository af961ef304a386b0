// The sockets that descriptors of memory pass through: the peer shares one, and can set its flags.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <optional>

#include "testing.h"
#include "transport/ipc/descriptor_channel.h"

namespace hmc::testing {
namespace {

Bytes words(std::size_t size) {
  Bytes bytes(size);
  fill_pattern(bytes, size);
  return bytes;
}

class Descriptors : public ::testing::Test {
 protected:
  void SetUp() override {
    near_.emplace(ipc::DescriptorChannel::create().value());
    far_.emplace(ipc::DescriptorChannel::create().value());
    UniqueFd to_far = near_->far_end().value(), to_near = far_->far_end().value();
    shared_ = to_near.duplicate();
    far_->connect(std::move(to_far));
    near_->connect(std::move(to_near));
  }
  std::optional<ipc::DescriptorChannel> near_, far_;
  UniqueFd shared_;  // the peer's hold on what this side receives from
};

TEST_F(Descriptors, APeerThatMakesTheSocketBlockDelaysNobody) {
  ASSERT_EQ(fcntl(shared_.get(), F_SETFL, fcntl(shared_.get(), F_GETFL) & ~O_NONBLOCK), 0);
  EXPECT_FALSE(near_->receive(100).has_value());
  HMC_ASSERT_OK(far_->send(words(77), {&shared_, 1}));
  const auto received = near_->receive(100);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->bytes, words(77));
  ASSERT_EQ(received->group.fds.size(), 1U);
  EXPECT_FALSE(received->group.cut);
  EXPECT_FALSE(near_->receive(100).has_value());
}

TEST_F(Descriptors, AFullSocketSaysSo) {
  Status status;
  int sent = 0;
  for (; sent < 100'000 && status.ok(); ++sent) status = far_->send(words(64), {});
  EXPECT_EQ(status.code(), Code::would_block) << status.str();
  for (int i = 0; i + 1 < sent; ++i) ASSERT_TRUE(near_->receive(100).has_value()) << i;
  EXPECT_FALSE(near_->receive(100).has_value());
  HMC_EXPECT_OK(far_->send(words(64), {}));
}

// Its death may be noticed here first.
TEST_F(Descriptors, APeerThatIsGoneIsLost) {
  near_.reset();
  shared_.reset();
  EXPECT_EQ(far_->send(words(64), {}).code(), Code::peer_lost);
}

}  // namespace
}  // namespace hmc::testing
