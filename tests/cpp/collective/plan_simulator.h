// Carries out the Schedules of all ranks in one process, in a random order that the schedules allow, as a network would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collective/plan.h"
#include "testing.h"

namespace hmc::testing {

// Numbers of ranks to plan for: 1 to 65; where every byte costs many times as much, the first ones and those around powers of two.
inline std::vector<std::uint32_t> rank_counts() {
  if (slow()) return {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 17, 31, 32, 33, 64, 65};
  std::vector<std::uint32_t> counts(65);
  std::iota(counts.begin(), counts.end(), 1U);
  return counts;
}

struct SimulatedRank {
  Schedule schedule;
  std::vector<std::byte> in, out, scratch;
  bool in_place = false;  // Area::in is Area::out
};

class PlanSimulator {
 public:
  // What it reduces with.
  static std::byte fold(std::byte so_far, std::byte next) {
    return static_cast<std::byte>(std::to_integer<unsigned>(so_far) * 31 + std::to_integer<unsigned>(next));
  }

  PlanSimulator(std::vector<SimulatedRank> ranks, unsigned seed) : ranks_(std::move(ranks)), random_(seed) {}

  // Empty, or what is wrong: an area overrun, a message of the wrong size, a deadlock, messages left over.
  std::string run();

  [[nodiscard]] const SimulatedRank& rank(std::size_t r) const { return ranks_[r]; }

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint8_t>;  // from, to, round
  struct Waiting {
    std::uint32_t rank, index;
  };

  std::byte* at(std::uint32_t rank, const Slice& where, std::uint64_t bytes);
  void perform(std::uint32_t rank, std::uint32_t index);
  // Depends on the order of the sources.
  void reduce(std::uint32_t rank, const Step& step);
  void finish(std::uint32_t rank, std::uint32_t index);

  std::vector<SimulatedRank> ranks_;
  std::mt19937 random_;
  std::vector<std::vector<std::uint32_t>> waits_;
  std::vector<Waiting> ready_;
  std::map<Key, std::deque<Waiting>> in_flight_, receives_;
  std::size_t left_ = 0;
  std::string error_;
};

}  // namespace hmc::testing
