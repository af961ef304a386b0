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
  const auto meet = [](const auto& own, const auto& theirs) { return !choose_ports(own, theirs, max_rails).empty(); };
  const std::vector<PortInfo> none;
  EXPECT_TRUE(meet(infiniband, infiniband));
  EXPECT_TRUE(meet(ipv4, ipv4));
  EXPECT_TRUE(meet(ipv6, ipv6));
  EXPECT_FALSE(meet(infiniband, ipv6));
  EXPECT_FALSE(meet(ipv4, infiniband));
  EXPECT_FALSE(meet(ipv4, ipv6));
  EXPECT_FALSE(meet(none, ipv4));
  EXPECT_FALSE(meet(ipv4, none));
}

TEST(VerbsPorts, TheFastestPair) {
  const std::vector<PortInfo> own{port(true, true, 25), port(false, false, 50), port(true, true, 100)};
  const std::vector<PortInfo> theirs{port(true, true, 40), port(false, false, 400)};
  const auto both = choose_ports(own, theirs, 1);
  ASSERT_EQ(both.size(), 1U);
  EXPECT_EQ(both[0].own, 1U);
  EXPECT_EQ(both[0].rate, 50U);
  const auto ethernet = choose_ports(own, std::span(theirs).first(1), 1);
  ASSERT_EQ(ethernet.size(), 1U);
  EXPECT_EQ(ethernet[0].own, 2U);
  EXPECT_EQ(ethernet[0].rate, 40U);
}

PortInfo in_subnet(std::uint8_t subnet, std::uint8_t host) {
  PortInfo info = port(true, true, 100);
  info.gid[12] = 10;
  info.gid[14] = subnet;
  info.gid[15] = host;
  return info;
}

TEST(VerbsPorts, SeveralPairs) {
  // Cards of one subnet belong together, whatever their order, and both sides see the same pairs.
  const std::vector<PortInfo> own{in_subnet(1, 1), in_subnet(2, 1), in_subnet(3, 1)};
  const std::vector<PortInfo> theirs{in_subnet(3, 2), in_subnet(1, 2), in_subnet(2, 2)};
  const auto pairs = choose_ports(own, theirs, max_rails);
  ASSERT_EQ(pairs.size(), 3U);
  for (const Pairing& pair : pairs) EXPECT_EQ(own[pair.own].gid[14], theirs[pair.theirs].gid[14]);
  const auto seen_there = choose_ports(theirs, own, max_rails);
  ASSERT_EQ(seen_there.size(), 3U);
  for (const Pairing& pair : seen_there) EXPECT_EQ(theirs[pair.own].gid[14], own[pair.theirs].gid[14]);
  EXPECT_EQ(choose_ports(own, theirs, 2).size(), 2U);
}

TEST(VerbsPorts, MuchSlowerOnesStayOut) {
  const std::vector<PortInfo> own{port(true, true, 10), port(true, true, 400), port(true, true, 100)};
  const auto pairs = choose_ports(own, own, max_rails);
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_EQ(pairs[0].rate, 400U);
  EXPECT_EQ(pairs[1].rate, 100U);
}

}  // namespace
}  // namespace hmc::verbs
