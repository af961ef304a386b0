// ScheduleBuilder: collects steps and their order, then lays them out as a Schedule.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collective/plan.h"

namespace hmc {

class ScheduleBuilder {
 public:
  using Index = std::uint32_t;

  Index send(std::uint32_t peer, std::uint8_t round, Slice from, std::uint64_t bytes) {
    return add({.kind = StepKind::send, .round = round, .peer = peer, .bytes = bytes, .from = from, .to = {}});
  }
  Index receive(std::uint32_t peer, std::uint8_t round, Slice to, std::uint64_t bytes) {
    return add({.kind = StepKind::receive, .round = round, .peer = peer, .bytes = bytes, .from = {}, .to = to});
  }
  Index copy(std::uint32_t own, Slice from, Slice to, std::uint64_t bytes) {
    return add({.kind = StepKind::copy, .round = 0, .peer = own, .bytes = bytes, .from = from, .to = to});
  }
  // `sources`: in the order in which they are reduced.
  Index reduce(std::uint32_t own, std::span<const Slice> sources, Slice to, std::uint64_t bytes,
               ReducePhase phase = ReducePhase::whole) {
    const auto first = static_cast<std::uint32_t>(schedule_.sources.size());
    schedule_.sources.insert(schedule_.sources.end(), sources.begin(), sources.end());
    return add({.kind = StepKind::reduce,
                .round = 0,
                .peer = own,
                .bytes = bytes,
                .from = {},
                .to = to,
                .first_source = first,
                .source_count = static_cast<std::uint32_t>(sources.size()),
                .phase = phase});
  }
  Index wait(std::uint32_t own) { return add({.kind = StepKind::wait, .round = 0, .peer = own, .from = {}, .to = {}}); }
  // `second` waits for `first`. Each pair once.
  void order(Index first, Index second) {
    edges_.emplace_back(first, second);
    ++schedule_.steps[first].next_count;
    ++schedule_.steps[second].waits;
  }

  Schedule finish(std::uint64_t scratch = 0) {
    std::uint32_t at = 0;
    for (Step& step : schedule_.steps) {
      step.first_next = at;
      at += step.next_count;
    }
    schedule_.next.resize(at);
    std::vector<std::uint32_t> filled(schedule_.steps.size(), 0);
    for (const auto& [first, second] : edges_) schedule_.next[schedule_.steps[first].first_next + filled[first]++] = second;
    schedule_.scratch = scratch;
    return std::move(schedule_);
  }

 private:
  Index add(const Step& step) {
    schedule_.steps.push_back(step);
    return static_cast<Index>(schedule_.steps.size() - 1);
  }

  Schedule schedule_;
  std::vector<std::pair<Index, Index>> edges_;
};

}  // namespace hmc
