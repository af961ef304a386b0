#include "collective/plan_simulator.h"

#include <algorithm>
#include <cstring>

namespace hmc::testing {

std::string PlanSimulator::run() {
  waits_.resize(ranks_.size());
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].scratch.assign(ranks_[r].schedule.scratch, std::byte{0xEE});
    for (std::uint32_t i = 0; i < ranks_[r].schedule.steps.size(); ++i) {
      waits_[r].push_back(ranks_[r].schedule.steps[i].waits);
      if (waits_[r][i] == 0) ready_.push_back({r, i});
      ++left_;
    }
  }
  while (error_.empty() && !ready_.empty()) {
    const std::size_t pick = std::uniform_int_distribution<std::size_t>(0, ready_.size() - 1)(random_);
    std::swap(ready_[pick], ready_.back());
    const auto [rank, index] = ready_.back();
    ready_.pop_back();
    perform(rank, index);
  }
  if (!error_.empty()) return error_;
  if (left_ > 0) return "deadlock: " + std::to_string(left_) + " steps never became possible";
  for (const auto& [key, queue] : in_flight_) {
    if (!queue.empty()) return "a message was never received";
  }
  return "";
}

std::byte* PlanSimulator::at(std::uint32_t rank, const Slice& where, std::uint64_t bytes) {
  auto& one = ranks_[rank];
  auto& area = where.area == Area::in && !one.in_place ? one.in : where.area != Area::scratch ? one.out : one.scratch;
  if (where.offset > area.size() || bytes > area.size() - where.offset) error_ = "a slice runs over its area";
  return area.data() + where.offset;
}

void PlanSimulator::perform(std::uint32_t rank, std::uint32_t index) {
  const Step& step = ranks_[rank].schedule.steps[index];
  if (step.peer >= ranks_.size()) {
    error_ = "a rank out of range";
    return;
  }
  if (step.kind == StepKind::copy) {
    std::byte* to = at(rank, step.to, step.bytes);
    const std::byte* from = at(rank, step.from, step.bytes);
    if (error_.empty() && step.bytes > 0) std::memcpy(to, from, step.bytes);
    return finish(rank, index);
  }
  if (step.kind == StepKind::reduce) {
    reduce(rank, step);
    return finish(rank, index);
  }
  const bool sends = step.kind == StepKind::send;
  const Key key = sends ? Key{rank, step.peer, step.round} : Key{step.peer, rank, step.round};
  (sends ? in_flight_ : receives_)[key].push_back({rank, index});
  auto& sent = in_flight_[key];
  auto& posted = receives_[key];
  if (sent.empty() || posted.empty()) return;
  const Waiting from = sent.front(), to = posted.front();
  sent.pop_front();
  posted.pop_front();
  const Step& out = ranks_[from.rank].schedule.steps[from.index];
  const Step& in = ranks_[to.rank].schedule.steps[to.index];
  if (out.bytes != in.bytes) {
    error_ = "rank " + std::to_string(from.rank) + " sends " + std::to_string(out.bytes) + ", rank " + std::to_string(to.rank) +
             " expects " + std::to_string(in.bytes);
    return;
  }
  std::byte* target = at(to.rank, in.to, in.bytes);
  const std::byte* source = at(from.rank, out.from, out.bytes);
  if (error_.empty() && in.bytes > 0) std::memcpy(target, source, in.bytes);
  finish(from.rank, from.index);
  finish(to.rank, to.index);
}

void PlanSimulator::reduce(std::uint32_t rank, const Step& step) {
  std::vector<std::byte> result(step.bytes);
  for (std::size_t source = 0; source < step.source_count; ++source) {
    const std::byte* from = at(rank, ranks_[rank].schedule.sources[step.first_source + source], step.bytes);
    if (!error_.empty()) return;
    for (std::uint64_t i = 0; i < step.bytes; ++i) result[i] = fold(result[i], from[i]);
  }
  std::byte* to = at(rank, step.to, step.bytes);
  if (error_.empty()) std::copy(result.begin(), result.end(), to);
}

void PlanSimulator::finish(std::uint32_t rank, std::uint32_t index) {
  --left_;
  const Schedule& schedule = ranks_[rank].schedule;
  const Step& step = schedule.steps[index];
  for (std::uint32_t n = 0; n < step.next_count; ++n) {
    const std::uint32_t next = schedule.next[step.first_next + n];
    if (--waits_[rank][next] == 0) ready_.push_back({rank, next});
  }
}

}  // namespace hmc::testing
