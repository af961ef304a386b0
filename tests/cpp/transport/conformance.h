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
    if (factory->name == "tcp") all.push_back({factory, "small_buffers", "HMC_TCP_BUFFER", "150000"});
  }
  return all;
}

inline std::string subject_name(const ::testing::TestParamInfo<Subject>& info) {
  return std::string(info.param.factory->name) + (info.param.variant.empty() ? "" : "_" + info.param.variant);
}

class Conformance : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (!GetParam().variable.empty()) setenv(GetParam().variable.c_str(), GetParam().value.c_str(), 1);
  }
  void TearDown() override {
    pair.reset();
    if (!GetParam().variable.empty()) unsetenv(GetParam().variable.c_str());
  }
  [[nodiscard]] std::unique_ptr<Pair> make(Progress progress = Progress::manual) {
    return Pair::create(*GetParam().factory, reason, progress);
  }

  std::unique_ptr<Pair> pair;
  std::string reason;
};

// In a test body: pairs the subject, or skips with the reason why it cannot be.
#define HMC_PAIR_OR_SKIP(...) \
  pair = make(__VA_ARGS__);   \
  if (!pair) GTEST_SKIP() << GetParam().factory->name << ": " << reason

}  // namespace hmc::testing
