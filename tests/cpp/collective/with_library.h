// Simulated devices whose vendor's collective library is there as well.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "collective/on_devices.h"

namespace hmc::testing {

inline constexpr const char* vendors_library = "vendor's library";
constexpr Reduction sum_of_f32{DataType::f32, ReduceOp::sum};

// Variables of the environment, for as long as this lives.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) {
      const char* const before = std::getenv(name.c_str());
      before_[name] = before == nullptr ? "" : before;
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::string> before_;
};

inline std::map<std::string, std::string> simulated_libraries() {
  return {{"HMC_NCCL_LIBRARY", HMC_SIM_CUDA},
          {"HMC_RCCL_LIBRARY", HMC_SIM_ROCM},
          {"HMC_CNCL_LIBRARY", HMC_SIM_MLU},
          {"HMC_SIM_DEVICES", "4"}};
}

// "1": the ranks share memory, through which they agree to call the library. "0": they agree by messages, as those of several
// hosts.
class WithLibrary : public ::testing::TestWithParam<const char*> {
 private:
  const Environment environment_{{{"HMC_FUSED", GetParam()}}};
};
inline std::string how_they_agree(const ::testing::TestParamInfo<const char*>& info) {
  return *info.param == '1' ? "shared" : "messages";
}

inline void with_library(const Devices& devices, const std::function<void(const Member&, const Communicator&)>& body,
                         bool breaks = false) {
  const Environment environment(simulated_libraries());
  const auto once_ready = [&](const Member& me, const Communicator& world) {
    wait_until_ready(me.device(), DataType::f32, devices.size());
    body(me, world);
  };
  on_devices(devices, once_ready, "", breaks);
}

inline std::uint64_t library_calls(const Communicator& world) { return world.context().counters()["native.count"]; }

// Of the simulated library of `device`: the nth call of `call` from now returns `code`, see cpp/sim/ccl_comm.h. `by`
// hmcsim_fail_here: the nth of the calling thread.
inline void let_fail(const Device& device, const char* call, int nth, int code, const char* by = "hmcsim_fail") {
  const std::map<std::string_view, const char*> files{{"cuda", HMC_SIM_CUDA}, {"rocm", HMC_SIM_ROCM}, {"mlu", HMC_SIM_MLU}};
  void* const library = dlopen(files.at(device.vendor()), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  void* const fail = dlsym(library, by);
  ASSERT_NE(fail, nullptr);
  ASSERT_EQ(reinterpret_cast<int (*)(const char*, int, int)>(fail)(call, nth, code), 0);
}

inline bool names(const Status& status, std::string_view text) { return status.message().find(text) != std::string_view::npos; }

inline void check_sum(const Member& me, std::size_t count, std::string_view algorithm) {
  const OnDevice memory(me.device(), input(DataType::f32, count, static_cast<std::size_t>(me.rank())));
  HMC_ASSERT_OK(me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(), algorithm));
  ASSERT_TRUE(memory.read() == expected(sum_of_f32, count, static_cast<std::size_t>(me.size())));
}

inline void check_gathered(const Member& me, std::size_t bytes) {
  const OnDevice in(me.device(), input(DataType::u8, bytes, static_cast<std::size_t>(me.rank())));
  const OnDevice out(me.device(), Bytes(bytes * static_cast<std::size_t>(me.size())));
  HMC_ASSERT_OK(me.all_gather(out.view(), in.view(), soon()));
  Bytes all;
  for (int r = 0; r < me.size(); ++r) {
    const Bytes each = input(DataType::u8, bytes, static_cast<std::size_t>(r));
    all.insert(all.end(), each.begin(), each.end());
  }
  ASSERT_TRUE(out.read() == all);
}

// Three ranks, the last of which dies while `what` of its library hangs in an all_reduce, which is their first unless `connects`:
// the others learn of it, and shrink.
inline void check_killed_rank(const std::string& vendor, const char* what, int hangs, bool connects, std::size_t count) {
  SCOPED_TRACE(std::string(what) + ", " + std::to_string(count) + " elements");
  const Environment libraries(simulated_libraries());
  JobOptions options;
  options.killed = {2};
  const auto body = [&](const Process& process) {
    simulate_vendors();
    InitOptions init = process.options();
    init.devices = {*Device::parse(vendor + ":" + std::to_string(process.rank))};
    const Communicator world = process.init(init);
    ASSERT_TRUE(world.valid());
    const Member me = *world.self();
    if (connects) check_sum(me, 1000, vendors_library);
    if (me.rank() == 2) {
      let_fail(me.device(), what, 1, hangs);
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        die();
      }).detach();
    }
    const OnDevice memory(me.device(), input(DataType::f32, count, static_cast<std::size_t>(me.rank())));
    const auto start = std::chrono::steady_clock::now();
    const Status status = me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(), vendors_library);
    EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
    EXPECT_TRUE(names(status, "rank 2")) << status.str();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
    const Communicator again = *world.shrink(soon());
    EXPECT_EQ(again.size(), 2);
    check_gathered(*again.self(), 3001);
    HMC_EXPECT_OK(again.close(soon()));
  };
  run_job(3, body, options);
}

}  // namespace hmc::testing
