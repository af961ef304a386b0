// plan_islands: a fluid estimate per island, whose cards are all alike.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "collective/border_split.h"
#include "collective/choose.h"
#include "collective/plan_rows.h"
#include "hmc/islands.h"

namespace hmc {
namespace {

constexpr int most_cards = 10'000'000;

Status bad(const std::string& why) { return {Code::invalid_argument, "plan of islands: " + why}; }

Status check_rate(const std::string& what, double rate) {
  if (rate > 0 && std::isfinite(rate)) return {};
  return bad(what + " is " + std::to_string(rate) + " bytes per second; a rate is more than 0");
}

Status check_island(const IslandCards& island, const IslandOptions& options) {
  const std::string of = " of " + island.name;
  if (island.cards < 1 || island.per_host < 1 || island.cards % island.per_host != 0) {
    return bad(std::to_string(island.cards) + " cards" + of + " are no whole hosts of " + std::to_string(island.per_host));
  }
  HMC_TRY(check_rate("the link" + of, island.inside));
  HMC_TRY(check_rate("the NIC" + of, island.nic));
  HMC_TRY(check_rate("the memory" + of, island.memory));
  if (options.border.empty()) return {};
  if (island.cards != island.per_host) return bad("border links are for islands of one host" + of);
  if (options.border.size() > static_cast<std::size_t>(island.cards))
    return bad(std::to_string(options.border.size()) + " border links for " + std::to_string(island.cards) + " cards" + of);
  return {};
}

// Stages within an island, and what goes where. `root`: in the first island only.
struct Shape {
  CallKind kind = CallKind::all_reduce;
  bool to_delegates = true, from_delegates = true;              // in every island
  bool root_to_delegates = false, root_from_delegates = false;  // in the root's

  [[nodiscard]] int stages(bool root) const {
    return (to_delegates || (root && root_to_delegates) ? 1 : 0) + (from_delegates || (root && root_from_delegates) ? 1 : 0);
  }
  [[nodiscard]] bool has_root() const { return root_to_delegates || root_from_delegates; }
  [[nodiscard]] bool has_blocks() const { return !has_root() && to_delegates != from_delegates; }
};

Result<Shape> shape_of(const std::string& call) {
  HMC_ASSIGN(const CallKind kind, equal_call_kind(call));
  switch (kind) {
    case CallKind::all_reduce:
      return Shape{kind, true, true};
    case CallKind::reduce_scatter:
      return Shape{kind, true, false};
    case CallKind::all_gather:
      return Shape{kind, false, true};
    case CallKind::reduce:
      return Shape{kind, true, false, false, true};
    case CallKind::broadcast:
      return Shape{kind, false, true, true, false};
    case CallKind::gather:
    case CallKind::scatter:
    case CallKind::all_to_all:
    case CallKind::all_to_all_relayed:
    case CallKind::barrier:
    case CallKind::all_to_all_v:
    case CallKind::exchange:
    case CallKind::exchange_bytes:
    case CallKind::split:
    case CallKind::topology:
    case CallKind::measure:
    case CallKind::share_memory:
      break;
  }
  return Status(Code::unsupported, "plan of islands: there is no hierarchical " + call +
                                       "; there are all_reduce, reduce_scatter, reduce, all_gather and broadcast");
}

Status check(std::uint64_t bytes, std::span<const IslandCards> islands, const IslandOptions& options) {
  if (islands.empty()) return bad("there are none");
  if (bytes > std::uint64_t{1} << 62) return bad(std::to_string(bytes) + " bytes are more than 2^62");
  if (options.chunk == 0) return bad("chunks of 0 bytes");
  for (const double latency : {options.inside_latency, options.nic_latency}) {
    if (!(latency >= 0) || !std::isfinite(latency))
      return bad("a latency is " + std::to_string(latency) + " seconds; it is 0 or more");
  }
  for (const double bandwidth : options.border) HMC_TRY(check_rate("a border link", bandwidth));
  std::int64_t cards = 0;
  for (const IslandCards& island : islands) {
    HMC_TRY(check_island(island, options));
    cards += island.cards;
    if (cards > most_cards) return bad("more than " + std::to_string(most_cards) + " cards");
  }
  return {};
}

// Seconds that one resource takes, and its name.
struct Busiest {
  double seconds = 0;
  std::string name;
  void add(double taken, const std::string& what) {
    if (taken > seconds || name.empty()) *this = {taken, what};
  }
};

struct Estimate {
  double seconds = 0;
  Busiest busiest;
  std::vector<IslandLoad> loads;
};

class Estimator {
 public:
  Estimator(const Shape& shape, std::uint64_t bytes, std::span<const IslandCards> islands, const IslandOptions& options)
      : shape_(shape),
        bytes_(static_cast<double>(bytes)),
        islands_(islands),
        options_(options),
        chunks_(std::max(1.0, std::ceil(bytes_ / static_cast<double>(options.chunk)))),
        border_(std::accumulate(options.border.begin(), options.border.end(), 0.0)) {
    for (const IslandCards& island : islands) {
      cards_ += island.cards;
      hosts_ += hosts_of(island);
      between_.push_back(border_ > 0 ? border_ : island.cards * island.nic);
    }
  }

  [[nodiscard]] double cards() const noexcept { return cards_; }

  // `even`: the same share for each island and each border link.
  [[nodiscard]] Estimate hierarchical(bool even) const {
    const std::vector<double> shares = shares_of(even);
    Estimate made;
    double inside = 0, among_hosts = 0, exchange = 0, latency = 0;  // of all stages of their kind, of the slowest island
    for (std::size_t i = 0; i < islands_.size(); ++i) {
      const IslandCards& island = islands_[i];
      const double per_host = island.per_host, hosts = hosts_of(island), stages = shape_.stages(i == 0);
      // Bytes that the busiest card sends, or receives.
      const double within = per_host > 1 ? stages / 2 * bytes_ * (1 + (per_host - 2) * most_of_one_card(island, even)) : 0;
      const double across = stages * bytes_ / per_host * (hosts - 1) / hosts;
      const double exchanged = islands_.size() > 1 ? bytes_ * exchanged_by(i, shares[i]) : 0;  // of the whole island
      const double exchange_seconds = border_ > 0 ? exchanged * slowest_border(even) : exchanged / (island.cards * island.nic);
      const double memory = bytes_ + 2 * (within + across + exchanged / island.cards);
      made.loads.push_back({island.name, island.cards, shares[i], within / island.inside, across / island.nic + exchange_seconds,
                            memory / island.memory});
      note(made.busiest, made.loads.back());
      inside = std::max(inside, within / island.inside);
      among_hosts = std::max(among_hosts, across / island.nic);
      exchange = std::max(exchange, exchange_seconds);
      latency = std::max(latency, stages * ((per_host > 1 ? options_.inside_latency : 0) + (hosts > 1 ? options_.nic_latency : 0)));
    }
    const bool passed_on = shape_.kind == CallKind::all_reduce || shape_.kind == CallKind::broadcast;
    if (islands_.size() > 1) latency += (islands_.size() > 2 && passed_on ? 2 : 1) * options_.nic_latency;
    const double one_chunk = std::max(inside + among_hosts + exchange, made.busiest.seconds) / chunks_;
    made.seconds = latency + one_chunk + made.busiest.seconds * (chunks_ - 1) / chunks_;
    return made;
  }

  // Each card has a part, of which it sends to, or receives from, every other card. The root sends or receives all of them once
  // more, and each of the others its own.
  [[nodiscard]] Estimate flat() const {
    Estimate made;
    const double rounds = shape_.kind == CallKind::all_reduce ? 2 : 1;
    for (std::size_t i = 0; i < islands_.size(); ++i) {
      const IslandCards& island = islands_[i];
      const double part = bytes_ / cards_, root = shape_.has_root() && i == 0 ? 1 : 0, other = shape_.has_root() && i != 0 ? 1 : 0;
      const double near = island.per_host - 1, far = cards_ - island.per_host;
      const double within = (rounds + root) * part * near, across = ((rounds + root) * far + other) * part;
      const double across_seconds =
          border_ > 0 ? ((rounds * island.cards + root) * far + other * island.cards) * part / border_ : across / island.nic;
      const double memory = bytes_ + 2 * (within + across);
      note(made.busiest, {island.name, island.cards, 0, within / island.inside, across_seconds, memory / island.memory});
    }
    const double latencies = shape_.has_blocks() ? 1 : 2;
    made.seconds =
        made.busiest.seconds + latencies * (hosts_ > 1 ? options_.nic_latency : options_.inside_latency) * (cards_ > 1 ? 1 : 0);
    return made;
  }

  // As cost_bound.h has it of ranks, here of cards, of hosts and of islands, each as one node.
  [[nodiscard]] double lower_bound() const {
    if (cards_ < 2) return 0;
    Nodes cards, hosts, islands;
    for (std::size_t i = 0; i < islands_.size(); ++i) {
      const IslandCards& island = islands_[i];
      const double nic = border_ > 0 ? border_ : island.nic;  // at most, of one card
      cards.add(island.cards, (island.per_host > 1 ? island.inside : 0) + (hosts_ > 1 ? nic : 0), 1 / cards_);
      hosts.add(hosts_of(island), border_ > 0 ? border_ : island.per_host * island.nic, island.per_host / cards_);
      islands.add(1, between_[i], island.cards / cards_);
    }
    double seconds = cards.seconds(bytes_, shape_);
    if (hosts_ > 1) seconds = std::max(seconds, hosts.seconds(bytes_, shape_));
    if (islands_.size() > 1) seconds = std::max(seconds, islands.seconds(bytes_, shape_));
    return seconds + (hosts_ > 1 ? std::min(options_.nic_latency, options_.inside_latency) : options_.inside_latency);
  }

 private:
  // `part`: of the blocks of all cards, those of a node.
  struct Nodes {
    double count = 0, all = 0, slowest = std::numeric_limits<double>::infinity(), others_blocks = 0;
    void add(double nodes, double bandwidth, double part) {
      count += nodes;
      all += nodes * bandwidth;
      slowest = std::min(slowest, bandwidth);
      others_blocks = std::max(others_blocks, (1 - part) / bandwidth);
    }
    [[nodiscard]] double seconds(double bytes, const Shape& shape) const {
      if (shape.has_blocks()) return bytes * others_blocks;
      if (shape.has_root()) return bytes / slowest;
      return std::max(bytes / slowest, 2 * bytes * (count - 1) / all);
    }
  };

  static double hosts_of(const IslandCards& island) { return static_cast<double>(island.cards / island.per_host); }

  // By island.
  [[nodiscard]] std::vector<double> shares_of(bool even) const {
    std::vector<double> shares(islands_.size(), 1 / static_cast<double>(islands_.size()));
    if (shape_.has_blocks()) {
      for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = islands_[i].cards / cards_;
    } else if (shape_.kind == CallKind::reduce) {
      std::ranges::fill(shares, 0);
      shares.front() = 1;
    } else if (!even && islands_.size() > 1) {
      shares = split_among_islands(between_);
    }
    return shares;
  }
  // How often an island sends, or receives, the array. There are at least two.
  [[nodiscard]] double exchanged_by(std::size_t island, double share) const {
    const auto others = static_cast<double>(islands_.size() - 1);
    if (shape_.has_blocks()) return std::max(1 - share, others * share);
    if (shape_.kind == CallKind::reduce) return island == 0 ? others : 1;
    if (shape_.kind == CallKind::broadcast && island > 0) return std::max(1.0, (others - 1) * share);
    return 1 + (others - 1) * share;
  }
  // The part of a host's elements that goes through its busiest card.
  [[nodiscard]] double most_of_one_card(const IslandCards& island, bool even) const {
    if (border_ == 0 || islands_.size() < 2) return 1.0 / island.per_host;
    if (even) return 1 / static_cast<double>(options_.border.size());
    return *std::ranges::max_element(options_.border) / border_;
  }
  // Seconds per byte of an exchange.
  [[nodiscard]] double slowest_border(bool even) const {
    if (!even) return 1 / border_;
    return 1 / (static_cast<double>(options_.border.size()) * *std::ranges::min_element(options_.border));
  }
  void note(Busiest& busiest, const IslandLoad& load) const {
    busiest.add(load.between_seconds, (border_ > 0 ? "border links of " : "NICs of ") + load.name);
    busiest.add(load.inside_seconds, "links inside " + load.name);
    busiest.add(load.memory_seconds, "memory of " + load.name);
  }

  const Shape shape_;
  const double bytes_;
  const std::span<const IslandCards> islands_;
  const IslandOptions& options_;
  const double chunks_;
  const double border_;  // bytes per second of all border links; 0: there are NICs only
  double cards_ = 0, hosts_ = 0;
  std::vector<double> between_;  // by island: bytes per second to the others
};

}  // namespace

Result<IslandPlan> plan_islands(std::uint64_t bytes, std::span<const IslandCards> islands, const IslandOptions& options) {
  HMC_ASSIGN(const Shape shape, shape_of(options.call));
  HMC_TRY(check(bytes, islands, options));
  const Estimator estimator(shape, bytes, islands, options);
  const Estimate hierarchical = estimator.hierarchical(false), flat = estimator.flat();
  const bool faster = hierarchical.seconds <= flat.seconds;
  const Estimate &best = faster ? hierarchical : flat, &other = faster ? flat : hierarchical;
  return IslandPlan{.call = options.call,
                    .bytes = bytes,
                    .cards = static_cast<int>(estimator.cards()),
                    .algorithm = faster ? "hierarchical" : "flat",
                    .seconds = best.seconds,
                    .lower_bound = estimator.lower_bound(),
                    .busiest = best.busiest.name,
                    .runner_up = {faster ? "flat" : "hierarchical", other.seconds},
                    .even_seconds = estimator.hierarchical(true).seconds,
                    .islands = hierarchical.loads};
}

std::string IslandPlan::str() const {
  std::string text = call + " of " + bytes_text(bytes) + " among " + std::to_string(cards) + " cards in " +
                     std::to_string(islands.size()) + (islands.size() == 1 ? " island\n" : " islands\n");
  text += text_row("algorithm", algorithm) + text_row("predicted", time_text(seconds)) +
          text_row("lower bound", time_text(lower_bound));
  text += text_row("busiest", busiest) + text_row("runner-up", runner_up.algorithm + ": " + time_text(runner_up.seconds));
  text += text_row("figures", "assumed, not measured: nominal rates");
  text += "  hierarchical, time of   share       inside      between       memory\n";
  for (const IslandLoad& load : islands) {
    char line[128];
    const std::string name(cut_utf8(load.name, 20));
    std::snprintf(line, sizeof line, "  %-20s %6.1f %% %12s %12s %12s\n", name.c_str(), load.share * 100,
                  time_text(load.inside_seconds).c_str(), time_text(load.between_seconds).c_str(),
                  time_text(load.memory_seconds).c_str());
    text += line;
  }
  return text;
}

}  // namespace hmc
