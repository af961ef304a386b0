// A card that neither finishes nor fails what it was given: nobody waits for it for ever, and a slow owner loses nothing.
#include <thread>

#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

namespace hmc::testing {
namespace {

constexpr std::size_t bytes = 3'000'001;

class VerbsWatch : public OnFabric {
 protected:
  void SetUp() override {
    OnFabric::SetUp();
    setenv("HMC_VERBS_SILENCE", "1", 1);
  }
};

TEST_F(VerbsWatch, TheLastRailEndsTheLink) {
  setenv("HMC_NICS", "fabric0", 1);
  connect();
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  fabric().hang_port(0, 3, 1);
  Move put(pair->a(), local, *remote, bytes), get(pair->a(), local, *remote, bytes);
  HMC_ASSERT_OK(put.put(pattern(10, 1)));
  HMC_ASSERT_OK(get.get());
  ends(put, Code::peer_lost);
  ends(get, Code::peer_lost);
  EXPECT_NE(pair->a().sink.failure.str().find("HMC_VERBS_SILENCE"), std::string::npos) << pair->a().sink.failure.str();
  EXPECT_TRUE(pair->b().sink.signals.empty());
}

// Signals that it acknowledged may be among what does not come back, and no other rail would carry them.
TEST_F(VerbsWatch, ACardThatDoesNotGiveBackWhatItHasEndsTheLink) {
  connect();
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  fabric().hang_port(0, 3, 0);
  Move put(pair->a(), local, *remote, bytes);
  HMC_ASSERT_OK(put.put());
  ends(put, Code::peer_lost);
  EXPECT_EQ(pair->a().sink.failure.code(), Code::peer_lost);
}

// A rail that is tried again, and hangs, costs the one that carries nothing.
TEST_F(VerbsWatch, OneThatIsTriedAgainHangs) {
  connect();
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  std::uint64_t seed = 0;
  const auto works = [&] {
    local.fill(++seed);
    Move put(pair->a(), local, *remote, bytes);
    HMC_ASSERT_OK(put.put());
    ends(put);
    ASSERT_TRUE(same_bytes(target.bytes(), pattern(bytes, seed)));
  };
  fabric().fail_port(1, 3, 0);
  for (int i = 0; i < 30 && !HasFatalFailure(); ++i) works();
  pair->settle(1000);  // both ends have left it
  fabric().hang_port(1, 0, 0);
  const Deadline deadline = Deadline::after_seconds(6);
  while (!deadline.passed() && !HasFatalFailure()) works();
  EXPECT_TRUE(pair->a().sink.failure.ok()) << pair->a().sink.failure.str();
  EXPECT_TRUE(pair->b().sink.failure.ok()) << pair->b().sink.failure.str();
}

// Nobody polls: the background thread wakes up and looks.
TEST_F(VerbsWatch, SleepersLook) {
  setenv("HMC_NICS", "fabric0", 1);
  pair = Pair::create(factory_of("verbs"), reason, Progress::background);
  ASSERT_TRUE(pair) << reason;
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  fabric().hang_port(0, 0, 1);
  Move put(pair->a(), local, *remote, bytes);
  HMC_ASSERT_OK(put.put());
  const Deadline deadline = Deadline::after_seconds(60);
  while (!put.done.done() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(put.done.done());
  EXPECT_EQ(put.done.status().code(), Code::peer_lost);
}

// An owner that comes by every second and a half finds what has come in the meantime, each time.
TEST_F(VerbsWatch, WhoPollsSeldomLosesNothing) {
  connect();
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
  local.fill(1);
  const auto remote = target.imported(pair->a()).value();
  Move put(pair->a(), local, *remote, bytes);
  HMC_ASSERT_OK(put.put());
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    pair->poll();
  }
  ends(put);
  EXPECT_TRUE(same_bytes(target.bytes(), pattern(bytes, 1)));
  EXPECT_TRUE(pair->a().sink.failure.ok());
}

}  // namespace
}  // namespace hmc::testing

#endif
