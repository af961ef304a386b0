// CollectivePlan: how a collective is carried out, why, and how long it should take. Plain data. Thread rules: values; functions
// from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/export.h"
#include "hmc/reduce.h"
#include "hmc/status.h"

namespace hmc {

struct PlanOptions {
  DataType type = DataType::f32;  // of calls that reduce
  int root = 0;                   // of calls that have one
  std::string algorithm = {};     // one of CollectivePlan::algorithms; empty: HMC chooses
  bool exact = false;             // of calls that reduce: Reduction::exact
};

// What one rank sends to another, and the figures of the link that it is sent over.
struct PlannedLink {
  int source = 0, target = 0;  // ranks
  std::uint64_t bytes = 0;
  double latency_us = 0;  // one way, small message
  double bandwidth = 0;   // bytes per second
  // Of both: "measured" (Communicator::measure), "path" (what Path expects), "topology" (written down), "alike" (another link's
  // measurement or Path), "default".
  std::string basis;
};

// Where the bytes of a step begin.
struct PlannedSlice {
  std::string buffer;        // "in", "out" (the caller's two), "scratch" (memory of the collective itself)
  std::uint64_t offset = 0;  // bytes
};

// One of the steps by which a rank carries out its part.
struct PlannedStep {
  std::string kind;  // "send", "receive", "copy", "reduce"
  int peer = 0;      // the other rank; own for copies, reductions and messages to itself
  int tag = 0;       // of messages: alike for a send and its receive, distinct between one pair of ranks in one direction
  std::uint64_t bytes = 0;
  std::vector<PlannedSlice> sources;   // send, copy: one; reduce: `bytes` of each, in the order in which they are reduced
  std::optional<PlannedSlice> target;  // receive, copy, reduce; a reduction's may be one of its sources
  std::vector<std::size_t> after;      // indices of the steps of this rank that must be complete before
};

struct PlannedSchedules;  // internal

struct PlannedAlternative {
  std::string algorithm;
  double seconds = 0;
};

struct CollectivePlan {
  std::string call;         // "all_reduce"
  std::uint64_t bytes = 0;  // of the largest buffer of a rank
  int ranks = 0;
  std::string algorithm;                              // "reduce-scatter + all-gather, chunks of 256 KiB"
  std::string reason;                                 // why this one, in sentences
  std::vector<std::string> algorithms;                // that can carry it out, by the names that collectives take as `algorithm`
  std::vector<PlannedLink> links;                     // with messages, by source, then target
  double seconds = 0;                                 // predicted, from the start of all ranks to the end of the last
  double lower_bound = 0;                             // seconds that any algorithm takes over these links
  std::optional<PlannedAlternative> runner_up;        // another one; beside one that was named, HMC's choice
  std::string figures;                                // what the prediction rests on: "measured 2026-11-26 12:31 UTC, ..."
  std::size_t element = 0;                            // bytes, of calls that reduce; else 0
  std::shared_ptr<const PlannedSchedules> schedules;  // what schedule() reads, up to 30 MB; internal

  // The steps of every rank, by rank. Those without `after` are posted in this order. Errors: unsupported: the call goes through
  // shared or mapped memory, not by messages; more than 2^18 steps.
  [[nodiscard]] HMC_API Result<std::vector<std::vector<PlannedStep>>> schedule() const;
  // A table within 80 columns, of the 16 links with the most bytes.
  [[nodiscard]] HMC_API std::string str() const;
};

// Ranks and links that are all alike.
struct UniformLinks {
  int ranks = 2;
  double latency = 5e-6;     // seconds, one way
  double bandwidth = 10e9;   // bytes per second, of a link in one direction
  double injection = 0;      // bytes per second and direction, of all links of a rank together; 0: as `bandwidth`
  double reduction = 10e9;   // bytes of inputs per second that a rank reduces
  double overhead = 0.5e-6;  // seconds that a rank spends on each message sent, and on each received
};

// The plan of a call (all_reduce, reduce_scatter, reduce, all_gather, broadcast, gather, scatter, all_to_all, barrier) on host
// memory, without a job. `bytes`: of the largest buffer of a rank, which for calls with blocks has one block per rank.
// Errors: invalid_argument (call, sizes, root, figures), unsupported (more than 256 ranks).
HMC_API Result<CollectivePlan> plan_collective(std::string_view call, std::uint64_t bytes, const UniformLinks& links,
                                               const PlanOptions& options = {});

}  // namespace hmc
