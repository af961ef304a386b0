// Simulated devices whose vendor's collective library is there as well.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "collective/on_devices.h"

namespace hmc::testing {

inline constexpr const char* vendors_library = "vendor's library";

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
  return {{"HMC_NCCL_LIBRARY", HMC_SIM_CUDA}, {"HMC_RCCL_LIBRARY", HMC_SIM_ROCM}, {"HMC_SIM_DEVICES", "4"}};
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

// Of the simulated library of `device`: the nth call of `call` from now returns `code`, see cpp/sim/ccl.cc.
inline void let_fail(const Device& device, const char* call, int nth, int code) {
  void* const library = dlopen(device.vendor() == "cuda" ? HMC_SIM_CUDA : HMC_SIM_ROCM, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  void* const fail = dlsym(library, "hmcsim_fail");
  ASSERT_NE(fail, nullptr);
  ASSERT_EQ(reinterpret_cast<int (*)(const char*, int, int)>(fail)(call, nth, code), 0);
}

}  // namespace hmc::testing
