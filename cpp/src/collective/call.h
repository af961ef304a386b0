// Call: which collective a message belongs to, as it travels in the message's head (Target::call).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/target.h"

namespace hmc {

// Small all_to_all blocks among many ranks are relayed, which is another exchange of messages.
enum class CallKind : std::uint8_t {
  barrier = 1,
  all_to_all,
  all_to_all_relayed,
  all_to_all_v,
  exchange,
  exchange_bytes,
  split,
  topology
};

// The name, for errors: "all_to_all". For a peer's number that is none, "an unknown collective".
[[nodiscard]] std::string_view name_of(CallKind kind) noexcept;

// 24 bits: the kind, and the size of an all_to_all's blocks, exact as far as 10 leading bits say it.
[[nodiscard]] std::uint32_t encode_call(CallKind kind, std::uint64_t block = 0) noexcept;
// Of two encoded calls.
[[nodiscard]] constexpr bool different_kinds(std::uint32_t a, std::uint32_t b) noexcept { return ((a ^ b) & call_kind_mask) != 0; }
// "all_to_all with blocks of 64 bytes"
[[nodiscard]] std::string describe_call(std::uint32_t call);

}  // namespace hmc
