// What a socket brings, into the caller's memory and past it into the buffer, whatever the sizes of the reads.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/fd.h"
#include "testing.h"
#include "transport/tcp/receive_buffer.h"

namespace hmc::tcp {
namespace {

struct Sockets {
  Sockets() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ours = UniqueFd(ends[0]);
    peers = UniqueFd(ends[1]);
  }
  void send(std::span<const std::byte> bytes) const {
    ASSERT_EQ(::send(peers.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  UniqueFd ours, peers;
};

TEST(ReceiveBuffer, APayloadAndWhatFollowsIt) {
  const Sockets sockets;
  ReceiveBuffer buffer;
  const auto sent = testing::pattern(1000, 7);
  sockets.send(sent);
  std::vector<std::byte> first(300), second(200);
  const std::vector<iovec> targets{{first.data(), first.size()}, {second.data(), second.size()}};
  std::size_t bytes = 0;
  ASSERT_EQ(buffer.receive(sockets.ours.get(), targets, 500, bytes), Io::moved);
  EXPECT_EQ(bytes, 1000U);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), sent.begin()));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), sent.begin() + 300));
  EXPECT_TRUE(std::ranges::equal(buffer.unread(), std::span(sent).subspan(500)));
  buffer.consume(499);
  EXPECT_EQ(buffer.unread().size(), 1U);
  EXPECT_EQ(buffer.receive(sockets.ours.get(), {}, 0, bytes), Io::blocked);
}

TEST(ReceiveBuffer, NothingGoesPastATargetThatIsNotTheLast) {
  const Sockets sockets;
  ReceiveBuffer buffer;
  sockets.send(testing::pattern(1000, 7));
  std::vector<std::byte> part(300);
  const std::vector<iovec> targets{{part.data(), part.size()}};
  std::size_t bytes = 0;
  ASSERT_EQ(buffer.receive(sockets.ours.get(), targets, 900, bytes), Io::moved);
  EXPECT_EQ(bytes, 300U);
  EXPECT_TRUE(buffer.unread().empty());
}

TEST(ReceiveBuffer, AFrameLargerThanTheBuffer) {
  const Sockets sockets;
  ReceiveBuffer buffer;
  const auto sent = testing::pattern(50'000, 3);
  sockets.send(sent);
  std::size_t bytes = 0;
  ASSERT_EQ(buffer.receive(sockets.ours.get(), {}, 0, bytes), Io::moved);
  buffer.consume(5000);
  buffer.make_room(45'000);
  while (buffer.unread().size() < 45'000) ASSERT_EQ(buffer.receive(sockets.ours.get(), {}, 0, bytes), Io::moved);
  EXPECT_TRUE(std::ranges::equal(buffer.unread(), std::span(sent).subspan(5000)));
}

TEST(ReceiveBuffer, RandomReads) {
  const Sockets sockets;
  ReceiveBuffer buffer;
  const auto sent = testing::pattern(100'000, 5);
  sockets.send(sent);
  shutdown(sockets.peers.get(), SHUT_WR);
  std::mt19937 random(11);
  std::vector<std::byte> got;
  std::size_t bytes = 1;
  while (bytes != 0) {
    std::vector<std::byte> target(buffer.unread().empty() ? random() % 3000 : 0);
    const std::vector<iovec> targets{{target.data(), target.size()}};
    ASSERT_EQ(buffer.receive(sockets.ours.get(), targets, target.size(), bytes), Io::moved);
    got.insert(got.end(), target.begin(), target.begin() + static_cast<std::ptrdiff_t>(std::min(bytes, target.size())));
    const std::size_t used = std::min<std::size_t>(buffer.unread().size(), random() % 9000);
    const auto unread = buffer.unread().first(used);
    got.insert(got.end(), unread.begin(), unread.end());
    buffer.consume(used);
    buffer.make_room(buffer.unread().size() + (random() % 4 == 0 ? 20'000 : 1));
  }
  got.insert(got.end(), buffer.unread().begin(), buffer.unread().end());
  EXPECT_TRUE(got == sent);
}

TEST(ReceiveBuffer, AClosedSocketFails) {
  ReceiveBuffer buffer;
  std::size_t bytes = 0;
  EXPECT_EQ(buffer.receive(-1, {}, 0, bytes), Io::failed);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace hmc::tcp
