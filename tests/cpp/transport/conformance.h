// The conformance suite of transports: every test runs for every factory of the table, and for the variants named here.
#pragma once

#include <cstdlib>

#include "transport/pair.h"

namespace hmc::testing {

struct Subject {
  const TransportFactory* factory;
  std::string variant;   // empty: as it comes
  std::string variable;  // set while the subject is made
  std::string value;
  std::string far_value = value;  // while the other end is made
};

// Ways of one transport that the environment selects.
inline std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const TransportFactory* factory : transport_factories()) {
    all.push_back({factory, "", "", ""});
    if (factory->name == "shm") all.push_back({factory, "ring", "HMC_SHM_PTRACE", "0"});
    if (factory->name == "staging") {
      all.push_back({factory, "carried", "HMC_STAGING_SHARED", "0"});
      all.push_back({factory, "small_chunks", "HMC_STAGING_CHUNK_BYTES", "4096"});
    }
    if (factory->name == "tcp") all.push_back({factory, "one_stream", "HMC_TCP_STREAMS", "1"});
    if (factory->name == "ucx") all.push_back({factory, "tcp", "UCX_TLS", "tcp"});
    if (factory->name == "tcp") all.push_back({factory, "small_buffers", "HMC_TCP_BUFFER", "150000"});
    // "near,far": the two ends use different RDMA devices, so that what they send goes over the cable between these.
    const std::string nics = std::getenv("HMC_TEST_NICS") == nullptr ? "" : std::getenv("HMC_TEST_NICS");
    if (const auto comma = nics.find(','); comma != std::string::npos) {
      const std::string near = nics.substr(0, comma), far = nics.substr(comma + 1);
      if (factory->name == "verbs") all.back() = {factory, "", "HMC_NICS", near, far};
      if (factory->name == "ucx") all.push_back({factory, "rdma", "UCX_NET_DEVICES", near + ":1", far + ":1"});
    }
  }
  return all;
}

inline std::string subject_name(const ::testing::TestParamInfo<Subject>& info) {
  return std::string(info.param.factory->name) + (info.param.variant.empty() ? "" : "_" + info.param.variant);
}

class Conformance : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override { set(GetParam().value); }
  void TearDown() override {
    pair.reset();
    if (!GetParam().variable.empty()) unsetenv(GetParam().variable.c_str());
  }
  [[nodiscard]] std::unique_ptr<Pair> make(Progress progress = Progress::manual) {
    auto made = Pair::create(*GetParam().factory, reason, progress, [] { set(GetParam().far_value); });
    set(GetParam().value);
    return made;
  }
  static void set(const std::string& value) {
    if (!GetParam().variable.empty()) setenv(GetParam().variable.c_str(), value.c_str(), 1);
  }

  std::unique_ptr<Pair> pair;
  std::string reason;
};

// In a test body: pairs the subject, or skips with the reason why it cannot be.
#define HMC_PAIR_OR_SKIP(...) \
  pair = make(__VA_ARGS__);   \
  if (!pair) GTEST_SKIP() << GetParam().factory->name << ": " << reason

}  // namespace hmc::testing
