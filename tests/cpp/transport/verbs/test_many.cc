// Many peers of one transport: what they share has room for all of them.
#include "transport/one_transport.h"

namespace hmc::testing {
namespace {

TEST(VerbsMany, SixtyFourPeersOfTwoNodes) {
  std::string reason;
  const auto pair = Pair::create(factory_of("verbs"), reason);
  if (!pair) GTEST_SKIP() << reason;
  constexpr std::size_t peers = 64;
  constexpr std::size_t bytes = 10'001;
  const Area local(*pair->a().node, bytes, false);
  fill_pattern(local.span(), 1);
  std::vector<std::unique_ptr<Link>> links;
  std::vector<std::unique_ptr<Area>> areas;
  std::vector<std::unique_ptr<RemoteRegion>> remotes;
  std::vector<std::unique_ptr<Transfer>> puts;
  for (std::size_t i = 0; i < peers; ++i) {
    links.push_back(std::make_unique<Link>());
    HMC_ASSERT_OK(links.back()->connect(*pair));
    areas.push_back(std::make_unique<Area>(*pair->b().node, bytes, false));
    remotes.push_back(links.back()->import(*areas.back()));
  }
  for (std::size_t i = 0; i < peers; ++i) {
    puts.push_back(std::make_unique<Transfer>(links[i]->near, local, *remotes[i]));
    puts.back()->set_signal(pattern(30, i));
    HMC_ASSERT_OK(puts.back()->put());
  }
  for (std::size_t i = 0; i < peers; ++i) {
    const auto& signals = links[i]->far_side().sink.signals;
    ASSERT_TRUE(pair->until([&] { return puts[i]->done.done() && !signals.empty(); })) << i;
    HMC_EXPECT_OK(Status(puts[i]->done.status()));
    EXPECT_EQ(signals.front(), pattern(30, i));
    EXPECT_EQ(first_mismatch(areas[i]->span(), 1), -1);
    EXPECT_TRUE(areas[i]->guards_intact());
  }
}

}  // namespace
}  // namespace hmc::testing
