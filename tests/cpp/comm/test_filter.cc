// The forms of HMC_TRANSPORTS.
#include "comm/routing/filter.h"
#include "support.h"

namespace hmc {
namespace {

TEST(TransportFilter, Forms) {
  const std::vector<std::string> known{"local", "shm", "tcp"};
  const auto parse = [&](std::string_view text) { return TransportFilter::parse(text, known); };
  EXPECT_TRUE(parse("")->allows("tcp"));
  EXPECT_TRUE(parse(" shm , tcp ")->allows("shm"));
  EXPECT_TRUE(parse("shm,tcp")->allows("tcp"));
  EXPECT_FALSE(parse("shm,tcp")->allows("local"));
  EXPECT_FALSE(parse("^shm")->allows("shm"));
  EXPECT_TRUE(parse("^shm")->allows("tcp"));
  EXPECT_FALSE(parse("^shm, tcp")->allows("tcp"));
  for (const char* bad : {"infiniband", "shm,", ",", "^", "shm;tcp", "^^shm", "shm,^tcp", "TCP"}) {
    const auto result = parse(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.status().code(), Code::invalid_argument);
    EXPECT_NE(result.status().message().find("local shm tcp"), std::string_view::npos) << result.status().str();
  }
}

TEST(TransportFilter, OfAContext) {
  ContextOptions options;
  options.transports = "warp";
  const auto refused = Context::create(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::invalid_argument);
  for (const auto& name : testing::peer_transports()) {
    testing::Pair pair(name);
    const auto path = pair.ab.path();
    ASSERT_TRUE(path.ok()) << path.status().str();
    EXPECT_EQ(path->transport, name);
    EXPECT_FALSE(path->rejected.empty());
    EXPECT_NE(path->str().find(name), std::string::npos);
  }
}

TEST(TransportFilter, NothingInCommonIsExplained) {
  const auto names = testing::peer_transports();
  if (names.size() < 2) GTEST_SKIP() << "one transport only";
  const auto a = testing::make_context(names[0]);
  const auto b = testing::make_context(names[1]);
  const auto peer = a.connect(b.addresses().front(), testing::soon());
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.status().code(), Code::unsupported) << peer.status().str();
  EXPECT_NE(peer.status().message().find(names[0]), std::string_view::npos);
}

TEST(TransportFilter, ListTransports) {
  const auto infos = list_transports();
  ASSERT_FALSE(infos.empty());
  for (const auto& info : infos) EXPECT_FALSE(info.reason.empty() && !info.available) << info.name;
}

}  // namespace
}  // namespace hmc
