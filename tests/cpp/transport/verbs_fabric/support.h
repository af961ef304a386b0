// Two ends of the verbs transport over the fabric (tests/cpp/fabric), and memory of simulated devices.
#pragma once

#ifdef HMC_FABRIC_LIBRARY

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
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

// `number` behind `kind`. What fits goes as the immediate of a put's last write, the other in a message.
inline Bytes numbered_signal(std::uint32_t kind, std::uint32_t number, bool fits) {
  Bytes bytes(16, fits ? std::byte{0} : std::byte{0xA5});
  std::memcpy(bytes.data(), &kind, sizeof kind);
  std::memcpy(bytes.data() + 4, &kind, sizeof kind);
  std::memcpy(bytes.data() + 8, &number, sizeof number);
  return bytes;
}
struct NumberedSignal {
  std::uint32_t kind, number;
};
inline NumberedSignal take_numbered(ByteSpan signal) {
  NumberedSignal said{};
  std::memcpy(&said.kind, signal.data(), sizeof said.kind);
  std::memcpy(&said.number, signal.data() + 8, sizeof said.number);
  return said;
}

// A sink whose handler goes before what it refers to does.
using Handled = std::unique_ptr<TestSink, decltype([](TestSink* sink) { sink->handler = nullptr; })>;

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
    for (const char* name : {"HMC_NICS", "HMC_VERBS_RAILS", "HMC_VERBS_QUEUE_PAIRS", "HMC_VERBS_PEER_MEMORY", "HMC_VERBS_SILENCE"})
      unsetenv(name);
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
