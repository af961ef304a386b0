#include "expert_headers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace hmc::bindings {
namespace {

using Words = std::vector<std::int64_t>;
constexpr std::int64_t most_rows = std::int64_t{1} << 40;

Status wrong(const char* call, std::int64_t rank, const std::string& why) {
  return Status(Code::protocol, std::string(call) + ": the header of rank " + std::to_string(rank) + " " + why);
}

Words copied(std::span<const std::int64_t> in, std::int64_t first, std::int64_t count) {
  Words words(static_cast<std::size_t>(count));
  std::memcpy(words.data(), in.data() + first, 8 * words.size());
  return words;
}

Status check_number(const char* call, std::int64_t found, std::int64_t number, std::int64_t rank) {
  if (found == number) return {};
  if (found == ExpertLayout::closed) return Status(Code::closed, "rank " + std::to_string(rank) + " has closed its experts.Buffer");
  if (found == ExpertLayout::masked) return masked_by(rank);
  return Status(Code::protocol, std::string(call) + ": rank " + std::to_string(rank) + " is at call " + std::to_string(found) +
                                    ", this rank at call " + std::to_string(number) + ": call both in one order everywhere");
}

bool within(const Words& words, std::int64_t most) {
  return std::ranges::all_of(words, [most](std::int64_t word) { return word >= 0 && word <= most; });
}

}  // namespace

Status masked_by(std::int64_t rank) {
  return Status(Code::peer_lost,
                "rank " + std::to_string(rank) + " has masked this rank and goes on without it: close this experts.Buffer");
}

std::int64_t pack_fact(std::int64_t expert, float weight) {
  const auto high = static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(weight)) << 32;
  return static_cast<std::int64_t>(high | static_cast<std::uint32_t>(expert));
}

std::int64_t fact_expert(std::int64_t fact, std::int64_t experts) {
  const auto expert = static_cast<std::int32_t>(static_cast<std::uint64_t>(fact) & 0xFFFFFFFFU);
  return expert >= 0 && expert < experts ? expert : -1;
}

float fact_weight(std::int64_t fact) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(fact) >> 32));
}

std::size_t write_dispatch(const ExpertRoutes& routes, std::int64_t number, std::int64_t rank, std::span<std::int64_t> out) {
  const ExpertLayout& layout = routes.layout();
  const ExpertChoice& choice = routes.choice();
  const auto tokens = routes.tokens_to(rank), counts = routes.counts_to(rank);
  out[0] = number;
  out[1] = static_cast<std::int64_t>(tokens.size());
  std::ranges::copy(counts, out.begin() + 2);
  std::size_t at = 2 + counts.size();
  std::ranges::copy(tokens, out.begin() + static_cast<std::ptrdiff_t>(at));
  at += tokens.size();
  if (!layout.once) return at;
  const std::int64_t first = layout.first_expert(rank), end = layout.first_expert(rank + 1);
  const auto facts = static_cast<std::size_t>(layout.facts());
  for (const std::int64_t token : tokens) {
    const std::size_t row = static_cast<std::size_t>(token) * choice.columns;
    for (std::size_t k = 0; k < facts; ++k) {
      const std::int64_t expert = k < choice.columns ? choice.ids[row + k] : -1;
      const bool here = expert >= first && expert < end;
      out[at++] = here ? pack_fact(expert - first, choice.weights[row + k]) : pack_fact(-1, 0.0F);
    }
  }
  return at;
}

Result<DispatchHeader> read_dispatch(const ExpertLayout& layout, std::int64_t number, std::int64_t rank,
                                     std::span<const std::int64_t> in) {
  const std::int64_t destinations = layout.destinations_of(layout.rank), most = layout.most_pairs();
  const Words start = copied(in, 0, 2 + destinations);
  HMC_TRY(check_number("dispatch", start[0], number, rank));
  const std::int64_t pairs = start[1];
  DispatchHeader header{{start.begin() + 2, start.end()}, {}, {}};
  if (pairs < 0 || pairs > most || !within(header.counts, most) ||
      std::accumulate(header.counts.begin(), header.counts.end(), std::int64_t{0}) != pairs) {
    return wrong("dispatch", rank, "has " + std::to_string(pairs) + " pairs, which its counts contradict");
  }
  header.tokens = copied(in, 2 + destinations, pairs);
  if (!within(header.tokens, layout.tokens - 1)) {
    return wrong("dispatch", rank, "names a token beyond its " + std::to_string(layout.tokens));
  }
  header.facts = copied(in, 2 + destinations + pairs, pairs * layout.facts());
  return header;
}

std::size_t write_combine(std::int64_t number, std::string_view descriptor, std::span<const std::int64_t> starts,
                          std::span<std::int64_t> out) {
  out[0] = number;
  out[1] = static_cast<std::int64_t>(descriptor.size());
  std::ranges::copy(starts, out.begin() + 2);
  std::memcpy(out.data() + 2 + starts.size(), descriptor.data(), descriptor.size());
  return 2 + starts.size() + (descriptor.size() + 7) / 8;
}

Result<CombineHeader> read_combine(const ExpertLayout& layout, std::int64_t number, std::int64_t rank,
                                   std::span<const std::int64_t> in) {
  const std::int64_t destinations = layout.destinations_of(rank);
  const Words start = copied(in, 0, 2 + destinations);
  HMC_TRY(check_number("combine", start[0], number, rank));
  const std::int64_t length = start[1];
  CombineHeader header{{}, {start.begin() + 2, start.end()}};
  if (length < 0 || length > 8 * ExpertLayout::descriptor_words || !within(header.starts, most_rows)) {
    return wrong("combine", rank, "is malformed");
  }
  header.descriptor.resize(static_cast<std::size_t>(length));
  std::memcpy(header.descriptor.data(), in.data() + 2 + destinations, header.descriptor.size());
  return header;
}

}  // namespace hmc::bindings
