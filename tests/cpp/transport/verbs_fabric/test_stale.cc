// Puts to a region that its owner has closed.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

namespace hmc::testing {
namespace {

class VerbsStale : public OnFabric {};

// They end together, in time that grows with their number, not with its square: that would be minutes.
TEST_F(VerbsStale, VeryManyQueuedPutsEndAtOnce) {
  setenv("HMC_NICS", "fabric0", 1);
  connect();
  constexpr std::size_t count = 400'000, size = 100;
  const AnyArea local(*pair->a().node, size, Device::cpu()), kept(*pair->b().node, size, Device::cpu());
  AnyArea gone(*pair->b().node, size, Device::cpu());
  local.fill(1);
  const auto to_gone = gone.imported(pair->a()).value(), to_kept = kept.imported(pair->a()).value();
  gone.deregister();
  std::vector<std::unique_ptr<Move>> puts;
  std::size_t ended = 0;
  for (std::size_t i = 0; i < count; ++i) {
    puts.push_back(std::make_unique<Move>(pair->a(), local, i % 1000 == 999 ? *to_kept : *to_gone, size));
    puts.back()->done.then = [&] { ++ended; };
    HMC_ASSERT_OK(puts.back()->put());
  }
  const Deadline deadline = Deadline::after_seconds(60);
  ASSERT_TRUE(pair->until([&] { return ended == count; }));
  EXPECT_FALSE(deadline.passed());
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(puts[i]->done.status().code(), i % 1000 == 999 ? Code::ok : Code::stale) << i;
    ASSERT_EQ(puts[i]->done.count(), 1);
  }
  EXPECT_TRUE(same_bytes(kept.bytes(), pattern(size, 1)));
  expect_link_works(*pair);
}

}  // namespace
}  // namespace hmc::testing

#endif
