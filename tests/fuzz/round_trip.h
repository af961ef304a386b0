// What decodes must encode to the same bytes again. Text from outside becomes valid UTF-8 as it is decoded: where that replaced a
// byte, or cut it off at the limit because its replacement is longer, what was encoded once must decode and encode to itself.
#pragma once

#include <algorithm>
#include <array>

#include "base/blob.h"

namespace hmc {

template <class Decode, class Encode>
bool round_trips(ByteSpan in, Decode decode, Encode encode) {
  const auto first = decode(in);
  if (!first) return true;
  const Bytes once = encode(*first);
  if (std::ranges::equal(once, in)) return true;
  constexpr std::array<std::byte, 3> replacement{std::byte{0xef}, std::byte{0xbf}, std::byte{0xbd}};
  const bool replaced = std::search(once.begin(), once.end(), replacement.begin(), replacement.end()) != once.end();
  if (!replaced && once.size() >= in.size()) return false;
  const auto second = decode(ByteSpan(once));
  return second && std::ranges::equal(encode(*second), once);
}

}  // namespace hmc
