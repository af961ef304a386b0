// What a program that is not HMC may say of its end of a connection.
#if __has_include(<infiniband/verbs.h>)

#include <gtest/gtest.h>

#include "transport/verbs/native.h"

namespace hmc::verbs {
namespace {

constexpr std::uint64_t number = 17;

TEST(VerbsNative, WhereAQueuePairIs) {
  const auto roce =
      native_peer({{"gid", "::ffff:10.1.2.3"}, {"qp_num", number}, {"psn", std::uint64_t{5}}, {"lid", std::uint64_t{0}}});
  ASSERT_TRUE(roce.ok()) << roce.status().str();
  EXPECT_EQ(roce->number, number);
  EXPECT_EQ(roce->sequence, 5U);
  EXPECT_TRUE(roce->port.ethernet && is_ipv4(roce->port.gid));
  EXPECT_EQ(roce->port.gid[15], 3);
  EXPECT_EQ(roce->port.mtu, max_mtu);
  const auto infiniband = native_peer({{"lid", std::uint64_t{9}}, {"qp_num", number}, {"mtu", std::uint64_t{1024}}});
  ASSERT_TRUE(infiniband.ok()) << infiniband.status().str();
  EXPECT_FALSE(infiniband->port.ethernet);
  EXPECT_EQ(infiniband->port.lid, 9);
  EXPECT_EQ(infiniband->port.mtu, 3);
}

TEST(VerbsNative, RefusalsNameTheField) {
  const std::pair<NativeFields, const char*> cases[] = {
      {{}, "qp_num"},
      {{{"gid", "::1"}, {"qp_num", std::uint64_t{0}}}, "qp_num"},
      {{{"gid", "::1"}, {"qp_num", std::uint64_t{1} << 24}}, "qp_num"},
      {{{"gid", "::1"}, {"qp_num", "17"}}, "qp_num"},
      {{{"gid", "::1"}, {"qp_num", number}, {"psn", std::uint64_t{1} << 24}}, "psn"},
      {{{"gid", "::1"}, {"qp_num", number}, {"lid", std::uint64_t{1} << 16}}, "lid"},
      {{{"gid", "::1"}, {"qp_num", number}, {"mtu", std::uint64_t{0}}}, "mtu"},
      {{{"gid", "::1"}, {"qp_num", number}, {"mtu", std::uint64_t{1500}}}, "mtu"},
      {{{"gid", "::1"}, {"qp_num", number}, {"mtu", std::uint64_t{8192}}}, "mtu"},
      {{{"gid", "10.0.0.1"}, {"qp_num", number}}, "gid"},
      {{{"gid", std::uint64_t{1}}, {"qp_num", number}}, "gid"},
      {{{"qp_num", number}}, "gid"},
      {{{"gid", "::1"}, {"qp_num", number}, {"pnr", number}}, "pnr"},
  };
  for (const auto& [fields, name] : cases) {
    const auto peer = native_peer(fields);
    ASSERT_FALSE(peer.ok()) << name;
    EXPECT_EQ(peer.status().code(), Code::invalid_argument);
    EXPECT_NE(peer.status().str().find(name), std::string::npos) << peer.status().str();
  }
}

}  // namespace
}  // namespace hmc::verbs

#endif
