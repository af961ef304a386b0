// A transport of tcp's kind beside tcp, for the tests' own transports to stand on.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>

#include "transport/transport.h"

namespace hmc::testing {

// With a listener of its own: that of the Context is tcp's.
inline Result<std::unique_ptr<Transport>> create_second_tcp(const TransportEnvironment& environment) {
  TransportEnvironment own = environment;
  own.listener = nullptr;
  own.listen_addresses.clear();
  const auto all = transport_factories();
  return (*std::ranges::find(all, std::string_view("tcp"), &TransportFactory::name))->create(own);
}

}  // namespace hmc::testing
