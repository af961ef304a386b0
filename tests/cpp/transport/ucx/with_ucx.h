// WithUcx: two connected ends of the transport ucx; its tests are skipped where UCX is not there.
#pragma once

#include <memory>
#include <string>

#include "transport/one_transport.h"

namespace hmc::testing {

class WithUcx : public ::testing::Test {
 protected:
  void SetUp() override {
    pair_ = Pair::create(factory_of("ucx"), reason_);
    if (!pair_) GTEST_SKIP() << reason_;
  }
  std::string reason_;
  std::unique_ptr<Pair> pair_;
};

}  // namespace hmc::testing
