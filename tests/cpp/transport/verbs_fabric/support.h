// Two ends of the verbs transport over the fabric (tests/cpp/fabric), and memory of simulated devices.
#pragma once

#ifdef HMC_FABRIC_LIBRARY

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "fabric/fabric.h"
#include "transport/any_area.h"
#include "transport/one_transport.h"
#include "transport/verbs/region.h"

namespace hmc::testing {

inline const FabricControls& fabric() {
  static const FabricControls& controls = *[] {
    void* library = dlopen(HMC_FABRIC_LIBRARY, RTLD_NOW);
    return reinterpret_cast<const FabricControls* (*)()>(dlsym(library, "hmc_fabric_controls"))();
  }();
  return controls;
}

class OnFabric : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("HMC_VERBS_LIBRARY", HMC_FABRIC_LIBRARY, 1);
    setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
    setenv("HMC_MLU_LIBRARY", HMC_SIM_MLU, 1);
    fabric().mend_ports();
    fabric().configure({});
  }
  void TearDown() override {
    pair.reset();
    for (const char* name : {"HMC_NICS", "HMC_VERBS_RAILS", "HMC_VERBS_QUEUE_PAIRS", "HMC_VERBS_PEER_MEMORY"}) unsetenv(name);
    EXPECT_EQ(fabric().device_regions(), 0U);
  }
  void connect() {
    pair = Pair::create(factory_of("verbs"), reason);
    ASSERT_TRUE(pair) << reason;
  }
  // Done with that code.
  void ends(Move& move, Code code = Code::ok) {
    ASSERT_TRUE(pair->until([&] { return move.done.done(); }));
    EXPECT_EQ(move.done.status().code(), code) << move.done.status().str();
    EXPECT_EQ(move.done.count(), 1);
  }

  std::unique_ptr<Pair> pair;
  std::string reason;
};

}  // namespace hmc::testing

#endif
