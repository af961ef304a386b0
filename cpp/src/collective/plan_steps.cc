// CollectivePlan::schedule: the ranks' Schedules as public data.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "collective/planning.h"

namespace hmc {
namespace {

PlannedSlice planned_slice(const Slice& slice) {
  constexpr std::array names{"in", "out", "scratch"};  // by Area
  return {names[static_cast<std::size_t>(slice.area)], slice.offset};
}

PlannedStep planned_step(const Schedule& schedule, const Step& step) {
  constexpr std::array kinds{"send", "receive", "copy", "reduce"};  // by StepKind
  PlannedStep planned{.kind = kinds[static_cast<std::size_t>(step.kind)],
                      .peer = static_cast<int>(step.peer),
                      .tag = step.round,
                      .bytes = step.bytes,
                      .sources = {},
                      .target = {},
                      .after = {}};
  if (step.kind == StepKind::send || step.kind == StepKind::copy) planned.sources.push_back(planned_slice(step.from));
  for (std::uint32_t i = 0; i < step.source_count; ++i)
    planned.sources.push_back(planned_slice(schedule.sources[step.first_source + i]));
  if (step.kind != StepKind::send) planned.target = planned_slice(step.to);
  return planned;
}

std::vector<PlannedStep> planned_steps(const Schedule& schedule) {
  std::vector<PlannedStep> steps;
  steps.reserve(schedule.steps.size());
  for (const Step& step : schedule.steps) steps.push_back(planned_step(schedule, step));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    for (std::uint32_t n = 0; n < step.next_count; ++n) steps[schedule.next[step.first_next + n]].after.push_back(i);
  }
  return steps;
}

}  // namespace

Result<std::vector<std::vector<PlannedStep>>> CollectivePlan::schedule() const {
  const std::string what = "schedule of " + call + " among " + std::to_string(ranks) + " ranks: ";
  if (schedules == nullptr) return Status(Code::invalid_argument, "schedule: the plan is of no call");
  if (!schedules->by_messages) {
    std::string names;
    for (const std::string& name : schedules->messages) names += (names.empty() ? "\"" : ", \"") + name + "\"";
    return Status(Code::unsupported, what + "\"" + algorithm + "\" sends no messages; plan it with algorithm= one of " + names);
  }
  if (schedules->merged_chunks) return Status(Code::unsupported, what + "it has more than 2^18 steps; plan fewer bytes or ranks");
  std::vector<std::vector<PlannedStep>> by_rank;
  for (const Schedule& each : schedules->by_rank) by_rank.push_back(planned_steps(each));
  return by_rank;
}

}  // namespace hmc
