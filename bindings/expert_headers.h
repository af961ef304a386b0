// What ranks tell each other beside the rows: little-endian 64-bit words in registered memory.
#pragma once

#include <hmc/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expert_routes.h"

namespace hmc::bindings {

// Of a dispatch: pairs by destination of the receiver, the token of each pair, and with `once` its experts and weights.
struct DispatchHeader {
  std::vector<std::int64_t> counts, tokens, facts;
};
// Of a combine: the buffer with the results, empty where there are none, and the first row by destination of the sender.
struct CombineHeader {
  std::string descriptor;
  std::vector<std::int64_t> starts;
};

// Words written of a header for `rank`.
std::size_t write_dispatch(const ExpertRoutes& routes, std::int64_t number, std::int64_t rank, std::span<std::int64_t> out);
std::size_t write_combine(std::int64_t number, std::string_view descriptor, std::span<const std::int64_t> starts,
                          std::span<std::int64_t> out);

// The header of `rank` in memory that it may change at any time: every word is read once. Errors: protocol, which names the rank;
// closed and peer_lost where the sender has closed its Buffer, or has masked the receiver.
Result<DispatchHeader> read_dispatch(const ExpertLayout& layout, std::int64_t number, std::int64_t rank,
                                     std::span<const std::int64_t> in);
Result<CombineHeader> read_combine(const ExpertLayout& layout, std::int64_t number, std::int64_t rank,
                                   std::span<const std::int64_t> in);

// The rank continues without this one.
Status masked_by(std::int64_t rank);

// A row's expert and weight as one word: the number among the receiver's experts, -1 for none, below the bits of the weight.
std::int64_t pack_fact(std::int64_t expert, float weight);
// -1 for a number beyond `experts`.
std::int64_t fact_expert(std::int64_t fact, std::int64_t experts);
float fact_weight(std::int64_t fact);

}  // namespace hmc::bindings
