// What waits for a peer that never connects leave behind.
#include <memory>

#include "comm/context_state.h"
#include "comm/peer_impl.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

TEST(AbsentPeers, TimedOutWaitsAreNotKept) {
  const auto context = make_context();
  std::shared_ptr<PeerState> absent;
  {
    const auto lock = context.state()->engine()->lock();
    absent = context.state()->expect_peer({1, 2}, {}, "rank 1");  // it must connect to this side
  }
  const Peer peer(absent);
  constexpr int calls = 1000;
  for (int i = 0; i < calls; ++i) {
    ASSERT_EQ(peer.lookup("kv", soon(0)).status().code(), Code::timeout);
    ASSERT_EQ(peer.path(Device::cpu(), Device::cpu(), soon(0)).status().code(), Code::timeout);
  }
  const auto lock = context.state()->engine()->lock();
  EXPECT_LT(static_cast<PeerImpl&>(*absent).handshake().actions(), 200U);
}

}  // namespace
}  // namespace hmc
