// Which ports are chosen for a connection.
#include <gtest/gtest.h>

#include "transport/verbs/route.h"

namespace hmc::verbs {
namespace {

PortInfo port(bool ethernet, bool ipv4, std::uint64_t rate) {
  PortInfo info;
  info.ethernet = ethernet;
  info.mtu = 5;
  info.rate = rate;
  info.gid[15] = 1;
  if (ipv4) info.gid[10] = info.gid[11] = 0xFF;
  return info;
}

TEST(VerbsPorts, SpeakTheSameNetwork) {
  const std::vector<PortInfo> infiniband{port(false, false, 10)}, ipv4{port(true, true, 10)}, ipv6{port(true, false, 10)};
  EXPECT_TRUE(choose_ports(infiniband, infiniband));
  EXPECT_TRUE(choose_ports(ipv4, ipv4));
  EXPECT_TRUE(choose_ports(ipv6, ipv6));
  EXPECT_FALSE(choose_ports(infiniband, ipv6));
  EXPECT_FALSE(choose_ports(ipv4, infiniband));
  EXPECT_FALSE(choose_ports(ipv4, ipv6));
  EXPECT_FALSE(choose_ports({}, ipv4));
  EXPECT_FALSE(choose_ports(ipv4, {}));
}

TEST(VerbsPorts, TheFastestPair) {
  const std::vector<PortInfo> own{port(true, true, 25), port(false, false, 50), port(true, true, 100)};
  const std::vector<PortInfo> theirs{port(true, true, 40), port(false, false, 400)};
  const auto both = choose_ports(own, theirs);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->own, 1U);
  EXPECT_EQ(both->rate, 50U);
  const auto ethernet = choose_ports(own, std::span(theirs).first(1));
  ASSERT_TRUE(ethernet);
  EXPECT_EQ(ethernet->own, 2U);
  EXPECT_EQ(ethernet->rate, 40U);
}

}  // namespace
}  // namespace hmc::verbs
