// When a rail fails, its receive slots go to the rail that takes over its signals.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

namespace hmc::testing {
namespace {

class VerbsReceives : public OnFabric {};

// An access error, after which one rail does not start over: the other has room for as many signals as it had.
TEST_F(VerbsReceives, AQueuePairThatDoesNotStartOverHandsItsReceivesOver) {
  connect();
  constexpr std::uint32_t count = 20;
  const AnyArea local(*pair->a().node, 100, Device::cpu());
  AnyArea target(*pair->b().node, 100, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  target.deregister();
  fabric().configure({.no_reset = 1});
  Move put(pair->a(), local, *remote, 100);
  HMC_ASSERT_OK(put.put());
  ends(put, Code::stale);
  fabric().configure({});
  // The other end is as if stopped.
  std::uint32_t sent = 0;
  const auto unsent = [&] {
    const auto lock = pair->a().lock();
    return pair->a().endpoint->has_unsent();
  };
  const Deadline deadline = Deadline::after_seconds(60);
  while (!deadline.passed() && pair->a().sink.failure.ok() && (sent < count || unsent())) {
    if (sent < count) {
      const Status status = send_signal(pair->a(), numbered_signal(1, sent, false));
      sent += status.ok() ? 1U : 0U;
      if (status.code() == Code::would_block) pair->b().node->poll();
    }
    pair->a().node->poll();
  }
  EXPECT_TRUE(pair->a().sink.failure.ok()) << pair->a().sink.failure.str();
  ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == count; }));
  for (std::uint32_t i = 0; i < count; ++i) EXPECT_EQ(pair->b().sink.signals[i], numbered_signal(1, i, false));
  expect_link_works(*pair);
}

}  // namespace
}  // namespace hmc::testing

#endif
