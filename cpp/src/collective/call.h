// Call: which collective a message belongs to, as it travels in the message's head (Target::call).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "collective/algorithm.h"
#include "comm/target.h"
#include "hmc/reduce.h"

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
  topology,
  measure,
  share_memory,
  all_reduce = first_exact_kind,
  reduce_scatter,
  reduce,
  all_gather,
  broadcast,
  gather,
  scatter,
};

// Whether a call of that kind reduces elements.
[[nodiscard]] constexpr bool reduces(CallKind kind) noexcept {
  return kind == CallKind::all_reduce || kind == CallKind::reduce_scatter || kind == CallKind::reduce;
}
// The name, for errors: "all_to_all". For a peer's number that is none, "an unknown collective".
[[nodiscard]] std::string_view name_of(CallKind kind) noexcept;

// 24 bits, the low byte of which is the kind and the algorithm, so that calls of different algorithms are different calls.
// And the size of an all_to_all's blocks, exact as far as 10 leading bits say it.
[[nodiscard]] std::uint32_t encode_call(CallKind kind, std::uint64_t block = 0, Algorithm algorithm = Algorithm::chosen) noexcept;
// And a digest of what every rank passes alike: sizes, the root.
[[nodiscard]] std::uint32_t encode_call(CallKind kind, std::span<const std::uint64_t> alike,
                                        Algorithm algorithm = Algorithm::chosen) noexcept;
// And the type, the operation, whether it is exact, and a digest of what else every rank passes alike.
[[nodiscard]] std::uint32_t encode_call(CallKind kind, const Reduction& reduction, std::span<const std::uint64_t> alike,
                                        Algorithm algorithm = Algorithm::chosen) noexcept;
// The call but for its digest, and with another one.
[[nodiscard]] std::uint32_t without_digest(std::uint32_t call) noexcept;
[[nodiscard]] std::uint32_t with_digest(std::uint32_t call, std::span<const std::uint64_t> alike) noexcept;
[[nodiscard]] inline CallKind kind_of(std::uint32_t call) noexcept { return kind_with_code(static_cast<std::uint8_t>(call)); }
[[nodiscard]] inline Algorithm algorithm_of(std::uint32_t call) noexcept {
  return algorithm_with_code(static_cast<std::uint8_t>(call));
}
// "all_to_all with blocks of 64 bytes", "all_reduce of f32, exact sum, by \"whole inputs to every rank\""
[[nodiscard]] std::string describe_call(std::uint32_t call);

}  // namespace hmc
