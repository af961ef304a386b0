// What a peer says must not grow without end here, nor fall back on others.

#include "comm/context_state.h"
#include "comm/session/group_events.h"
#include "comm/wire/codec.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

void say(const Peer& to, MessageType type, ByteSpan payload) {
  for (const auto limit = soon(); !limit.passed();) {
    const auto lock = to.state()->context().engine()->lock();
    if (to.state()->send_control(type, payload).code() != Code::would_block) return;
  }
  ADD_FAILURE() << "no room on the control channel";
}

void expect_refused(const Peer& at) {
  const Status lost = at.wait_notify(1, 1, soon(20));
  EXPECT_EQ(lost.code(), Code::protocol) << lost.str();
}

// Each leaves a record until the peer ends.
TEST(Bounds, AttemptsToConnectAreCounted) {
  for (const std::uint32_t attempt : {256U, ~std::uint32_t{0}}) {
    const Pair noted("shm"), addressed("shm");
    say(noted.ba, wire::endpoint_failed, encode(wire::EndpointNote{"tcp", attempt, Code::transport, "once more"}));
    expect_refused(noted.ab);
    say(addressed.ba, wire::address, encode(wire::Address{"tcp", attempt, {}}));
    expect_refused(addressed.ab);
  }
}

TEST(Bounds, OnePeersMessagesToAGroupLeaveRoomForAnothers) {
  const Pair pair;
  const Context other = make_context();
  const Peer from_other = *other.connect(pair.a.addresses().front(), soon()), to_other = *pair.a.accept(soon());
  const auto buffer = *pair.a.buffer(10);
  for (int i = 0; i < 4096; ++i) say(pair.ba, 200, pattern(10, 1));
  HMC_ASSERT_OK(pair.ba.import(*buffer.descriptor(), soon()).status());  // answered behind them
  say(from_other, 200, pattern(10, 2));
  HMC_EXPECT_OK(from_other.import(*buffer.descriptor(), soon()).status());
  EXPECT_TRUE(pair.ab.alive() && to_other.alive());
  const auto lock = pair.a.state()->engine()->lock();
  std::size_t seen = 0;
  pair.a.state()->group_events().set_message_handler([&](PeerState&, MessageType, ByteSpan, std::vector<UniqueFd>) { ++seen; });
  EXPECT_EQ(seen, 4097U);
  pair.a.state()->group_events().set_message_handler(nullptr);
}

TEST(Bounds, BytesOfMessagesToAGroupAreBounded) {
  const Pair pair;
  const auto large = pattern(1 << 20, 1);
  for (int i = 0; i < 17; ++i) say(pair.ba, 200, large);
  expect_refused(pair.ab);
}

}  // namespace
}  // namespace hmc
