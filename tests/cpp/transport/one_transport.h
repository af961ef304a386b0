// What the tests of a single transport share.
#pragma once

#include <cstdlib>
#include <string_view>

#include "transport/pair.h"

namespace hmc::testing {

inline const TransportFactory& factory_of(std::string_view transport) {
  for (const TransportFactory* factory : transport_factories()) {
    if (factory->name == transport) return *factory;
  }
  std::abort();
}

// One put, every byte compared.
inline void expect_link_works(Pair& pair) {
  const Area local(*pair.a().node, 70'001, false);
  const Area remote(*pair.b().node, 70'001, false);
  fill_pattern(local.span(), 6);
  const auto imported = pair.import(pair.a(), remote);
  Transfer put(pair.a(), local, *imported);
  HMC_ASSERT_OK(put.put());
  ASSERT_TRUE(pair.until([&] { return put.done.done(); }));
  HMC_EXPECT_OK(Status(put.done.status()));
  EXPECT_EQ(first_mismatch(remote.span(), 6), -1);
}

}  // namespace hmc::testing
