// What a collective costs: the time of all ranks' Schedules over links of given latency and bandwidth. Pure.
//
// Each message takes the alpha-beta time of its link (Hockney 1994), and the sender and the receiver each spend `overhead` on it
// (the o of LogP: Culler et al. 1993). A rank sends at most `injection` bytes per second to all others together, and receives as
// many. Links and ranks serve messages in the order in which they can begin.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "collective/plan.h"
#include "hmc/status.h"

namespace hmc {

struct LinkCost {
  double latency = 0;    // seconds, one way
  double bandwidth = 0;  // bytes per second
};

struct RankCost {
  double injection = std::numeric_limits<double>::infinity();  // bytes per second and direction, of all its links together
  double reduction = std::numeric_limits<double>::infinity();  // bytes of inputs per second
  double overhead = 0;                                         // seconds per message sent, and per message received
};

// The links between `size` ranks. `from == to` is a rank's memory: its copies and its messages to itself.
class CostModel {
 public:
  // All ranks and all links alike.
  CostModel(std::uint32_t size, const LinkCost& link, const RankCost& rank)
      : ranks_(size, rank), links_(ranks_.size() * size, link) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ranks_.size()); }
  [[nodiscard]] RankCost& rank(std::uint32_t r) noexcept { return ranks_[r]; }
  [[nodiscard]] const RankCost& rank(std::uint32_t r) const noexcept { return ranks_[r]; }
  [[nodiscard]] LinkCost& link(std::uint32_t from, std::uint32_t to) noexcept { return links_[index(from, to)]; }
  [[nodiscard]] const LinkCost& link(std::uint32_t from, std::uint32_t to) const noexcept { return links_[index(from, to)]; }
  // Errors: invalid_argument, naming a figure that is negative or no number, or a rate of 0.
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] std::size_t index(std::uint32_t from, std::uint32_t to) const noexcept { return from * ranks_.size() + to; }

  std::vector<RankCost> ranks_;
  std::vector<LinkCost> links_;
};

// What goes from one rank to another; a rank's messages to itself are left out.
struct PairTraffic {
  std::uint32_t from = 0, to = 0;
  std::uint64_t bytes = 0;
  std::uint64_t messages = 0;
};

// Of every pair with messages, by `from`, then `to`. `schedules`: one per rank.
std::vector<PairTraffic> traffic_of(std::span<const Schedule> schedules);

// Seconds from a common start to the end of the last rank. `schedules`: one per rank of `model`.
// Errors: invalid_argument (as CostModel::check; schedules that do not fit together).
Result<double> predict(std::span<const Schedule> schedules, const CostModel& model);

}  // namespace hmc
