// A device that is removed, or reset by its driver.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace hmc::testing {
namespace {

class VerbsRemoval : public OnFabric {};

// The removed device's descriptors report EPOLLERR from then on.
TEST_F(VerbsRemoval, ItsDescriptorsKeepNobodyAwake) {
  static std::atomic<int> looks{0};
  looks = 0;
  verbs::Api api = *verbs::Api::get().value();
  api.get_cq_event = [](ibv_comp_channel*, ibv_cq**, void**) {
    ++looks;
    return -1;
  };
  const auto engine = Engine::create(Progress::manual).value();
  const auto lock = engine->lock();
  const auto nics = verbs::Nic::open_all(api, engine, reason);
  ASSERT_FALSE(nics.empty()) << reason;
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  close(ends[0]);
  ASSERT_EQ(dup3(ends[1], nics[0]->queues().descriptor(), O_CLOEXEC), nics[0]->queues().descriptor());
  close(ends[1]);
  HMC_ASSERT_OK(nics[0]->queues().reserve(10).status());
  for (int i = 0; i < 100'000; ++i) engine->poll_once();
  EXPECT_EQ(looks, 1);
}

}  // namespace
}  // namespace hmc::testing

#endif
