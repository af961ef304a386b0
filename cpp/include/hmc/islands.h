// IslandPlan: what a collective over islands of unequal cards takes, by a fluid estimate per island. Plain data. Thread rules:
// values; functions from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hmc/export.h"
#include "hmc/plan.h"
#include "hmc/status.h"

namespace hmc {

// Equal cards of one vendor. Rates are of one card, in bytes per second and direction.
struct IslandCards {
  std::string name;   // "8xH200"
  int cards = 8;      // of all its hosts
  int per_host = 8;   // divides `cards`
  double inside = 0;  // to the other cards of its host together (NVLink, xGMI)
  double nic = 0;     // to cards of other hosts
  double memory = 0;  // reads and writes together
};

struct IslandOptions {
  // all_reduce, reduce_scatter, reduce, all_gather or broadcast; a root is a card of the first island.
  std::string call = "all_reduce";
  // Bandwidths of the links that each island, of one host, has to the others; empty: each card's NIC.
  std::vector<double> border = {};
  double inside_latency = 5e-6;   // seconds, of a message within a host
  double nic_latency = 10e-6;     // seconds, of a message between hosts
  std::uint64_t chunk = 4 << 20;  // bytes of the buffer that are in one stage of the pipeline at a time
};

// What the busiest card of an island moves by the hierarchical algorithm, and how long each of its resources takes.
struct IslandLoad {
  std::string name;
  int cards = 0;
  double share = 0;  // of the array: what this island reduces for all, or passes on; of calls with blocks, its own blocks
  double inside_seconds = 0, between_seconds = 0, memory_seconds = 0;
};

struct IslandPlan {
  std::string call;
  std::uint64_t bytes = 0;
  int cards = 0;
  std::string algorithm;  // the faster one: "hierarchical" or "flat"
  double seconds = 0;     // predicted
  double lower_bound = 0;
  std::string busiest;           // "NICs of 8xH200": the resource that takes longest
  PlannedAlternative runner_up;  // the other one
  double even_seconds = 0;       // predicted for the hierarchical algorithm with equal shares for all islands and border links
  std::vector<IslandLoad> islands;

  // A table within 80 columns.
  [[nodiscard]] HMC_API std::string str() const;
};

// A call whose largest array of a card has `bytes`. Hierarchical, an all_reduce: reduce-scatter within each host, then among the
// hosts of an island; exchange between islands, with shares in proportion to bandwidth; all-gather back. The other calls are parts
// of it. Flat: a part for each card, which sends to and receives from every other. The time is that of the busiest resource, plus
// what fills the pipeline of chunks, plus latencies. Errors: invalid_argument, unsupported (a call that has no hierarchical plan).
HMC_API Result<IslandPlan> plan_islands(std::uint64_t bytes, std::span<const IslandCards> islands,
                                        const IslandOptions& options = {});

}  // namespace hmc
