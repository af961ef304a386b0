// How the benchmarks take a Status: its message, and the end of the process.
#pragma once

#include <hmc/hmc.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace bench {

inline void check(const hmc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, status.str().c_str());
  std::_Exit(1);
}
template <class T>
T check(hmc::Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

}  // namespace bench
