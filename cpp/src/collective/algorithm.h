// Algorithm: the ways in which a collective can be carried out, and the names that users give them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/status.h"

namespace hmc {

enum class CallKind : std::uint8_t;
struct EqualCall;

enum class Algorithm : std::uint8_t {
  chosen,        // by HMC
  whole,         // whole inputs, in one round, to each rank that reduces
  divided,       // shares of the ranks, then gathered
  shared_whole,  // whole inputs through shared memory
  shared_pass,   // chunks through shared memory
  tree,          // about log2 n rounds
  direct,        // each block straight to its rank; in a group of one rank, everything
  relayed,       // blocks by way of other ranks
  hierarchical,  // within islands, and between them
  mapped,        // one kernel on each rank's device, over memory that all of them map
  native,        // the collective library of the devices' vendor
};
[[nodiscard]] constexpr bool is_shared(Algorithm algorithm) noexcept {
  return algorithm == Algorithm::shared_whole || algorithm == Algorithm::shared_pass || algorithm == Algorithm::mapped ||
         algorithm == Algorithm::native;
}
// Whether calls of that algorithm may pass through memory that all ranks share, where the group has some.
[[nodiscard]] constexpr bool may_be_shared(Algorithm algorithm) noexcept {
  return algorithm == Algorithm::chosen || is_shared(algorithm);
}

// As messages carry both, in one byte. An algorithm that is named is alike on every rank.
[[nodiscard]] std::uint8_t code_of(CallKind kind, Algorithm algorithm) noexcept;
// For a peer's code that is none: a kind that is none, and chosen.
[[nodiscard]] CallKind kind_with_code(std::uint8_t code) noexcept;
[[nodiscard]] Algorithm algorithm_with_code(std::uint8_t code) noexcept;

// The memory that all ranks of a group share, if the buffers are of that kind.
struct Sharing {
  bool cpu = false;
  bool devices = false;  // the ranks' devices map each other's memory
  bool library = false;  // the ranks' devices are of one vendor with a collective library
};

// "binomial tree". Empty: calls of that kind have no such algorithm. In a group of one rank all are "local".
[[nodiscard]] std::string_view name_of(CallKind kind, Algorithm algorithm) noexcept;
// The algorithms for a call that check_call() accepts; at least one.
std::vector<Algorithm> algorithms_of(const EqualCall& call, Sharing sharing);
std::vector<std::string> algorithm_names(const EqualCall& call, Sharing sharing);
// By such a name, or as a plan prints it, with "by messages: " or ", chunks of ...". Empty: chosen.
// Errors: invalid_argument, with what stands in the way and the names that can.
Result<Algorithm> named_algorithm(const EqualCall& call, std::string_view name, Sharing sharing);

}  // namespace hmc
