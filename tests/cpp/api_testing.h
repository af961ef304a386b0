// What tests of the public API share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hmc/hmc.h"
#include "testing.h"

namespace hmc::testing {

using Bytes = std::vector<std::byte>;

// A loaded host has time enough. A test as a whole has three times as long (main.cc).
inline Deadline soon(double seconds = 60) { return Deadline::after_seconds(seconds); }

// `bytes` from byte `offset` on.
inline MemoryView view(Bytes& bytes, std::size_t offset = 0) { return {bytes.data() + offset, bytes.size() - offset}; }

// 0 where the Context counts nothing of that name.
inline std::uint64_t counter(const Context& context, const std::string& name) {
  const auto all = context.counters();
  const auto found = all.find(name);
  return found == all.end() ? 0 : found->second;
}

}  // namespace hmc::testing
