// HeldLookup: a host name whose lookup does not end. It replaces getaddrinfo() in the executables that use it.
#pragma once

namespace hmc::testing {

// While one lives, lookups of `name` wait for release() and then find 127.0.0.1, after 127.0.0.2 where `several`. One at a time.
class HeldLookup {
 public:
  static constexpr const char* name = "held.test";
  explicit HeldLookup(bool several = false);
  ~HeldLookup();  // releases, and waits until no lookup is left inside
  HeldLookup(const HeldLookup&) = delete;
  HeldLookup& operator=(const HeldLookup&) = delete;
  void release();
  void wait_for_lookup();  // until one waits
};

}  // namespace hmc::testing
