#include "collective/cost.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>

namespace hmc {
namespace {

bool is_rate(double value) { return value > 0; }  // false for NaN; infinity is a rate
bool is_time(double value) { return value >= 0 && std::isfinite(value); }

Status bad_figure(const std::string& what, double value) {
  return {Code::invalid_argument,
          "cost model: " + what + " is " + std::to_string(value) + "; times are 0 or more, rates more than 0"};
}

// A server that takes one message after the other.
class Port {
 public:
  // Its time of the message that can begin at `when`.
  double serve(double when, double seconds) {
    const double begin = std::max(when, free_);
    free_ = begin + seconds;
    return begin;
  }
  [[nodiscard]] double free() const noexcept { return free_; }

 private:
  double free_ = 0;
};

class Prediction {
 public:
  Prediction(std::span<const Schedule> schedules, const CostModel& model)
      : schedules_(schedules),
        model_(model),
        size_(model.size()),
        out_(size_),
        in_(size_),
        compute_(size_),
        wires_(std::size_t{size_} * size_),
        waits_(size_) {}

  Result<double> run() {
    std::uint64_t left = 0;
    for (std::uint32_t r = 0; r < size_; ++r) {
      const auto& steps = schedules_[r].steps;
      left += steps.size();
      waits_[r].reserve(steps.size());
      for (std::uint32_t i = 0; i < steps.size(); ++i) {
        waits_[r].push_back(steps[i].waits);
        if (steps[i].waits == 0) add(0, Stage::ready, {r, i});
      }
    }
    double now = 0;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now = event.when;
      switch (event.stage) {
        case Stage::ready:
          HMC_TRY(begin(now, event.place));
          break;
        case Stage::on_link:
          move(now, event.place);
          break;
        case Stage::arriving:
          arrive(now, event.place);
          break;
        case Stage::done:
          --left;
          end(now, event.place);
          break;
      }
    }
    if (left == 0) return now;
    return misfit(std::to_string(left) + " steps cannot happen");
  }

 private:
  struct Place {
    std::uint32_t rank, step;
  };
  // A step is ready and done. A message in between is on its link and arriving; its place is that of the send.
  enum class Stage : std::uint8_t { ready, on_link, arriving, done };
  struct Event {
    double when;
    std::uint64_t order;  // among events at one time
    Stage stage;
    Place place;
    bool operator>(const Event& other) const noexcept { return when != other.when ? when > other.when : order > other.order; }
  };

  static Status misfit(const std::string& why) { return {Code::invalid_argument, "the schedules do not fit together: " + why}; }
  [[nodiscard]] const Step& step(const Place& at) const { return schedules_[at.rank].steps[at.step]; }
  // Of events at one time, receives are posted first, so that a rank's messages begin in the order of its sends.
  void add(double when, Stage stage, const Place& place) {
    const bool receives = stage == Stage::ready && step(place).kind == StepKind::receive;
    events_.push({when, order_++ | (receives ? 0 : std::uint64_t{1} << 63), stage, place});
  }
  [[nodiscard]] Port& wire(const Place& send) { return wires_[std::size_t{send.rank} * size_ + step(send).peer]; }
  static std::uint64_t number(const Place& place) noexcept { return std::uint64_t{place.rank} << 32 | place.step; }

  void end(double now, const Place& place) {
    const Schedule& schedule = schedules_[place.rank];
    const Step& done = step(place);
    for (std::uint32_t n = 0; n < done.next_count; ++n) {
      const std::uint32_t next = schedule.next[done.first_next + n];
      if (--waits_[place.rank][next] == 0) add(now, Stage::ready, {place.rank, next});
    }
  }

  Status begin(double now, const Place& place) {
    const Step& one = step(place);
    const auto bytes = static_cast<double>(one.bytes);
    switch (one.kind) {
      case StepKind::copy:
        compute(now, place, bytes / model_.link(place.rank, place.rank).bandwidth);
        return {};
      case StepKind::reduce:
        compute(now, place, bytes * one.source_count / model_.rank(place.rank).reduction);
        return {};
      case StepKind::wait:  // in no plan
      case StepKind::send:
      case StepKind::receive:
        return post(now, place);
    }
    return {};
  }

  void compute(double now, const Place& place, double seconds) {
    compute_[place.rank].serve(now, seconds);
    add(compute_[place.rank].free(), Stage::done, place);
  }

  // A message begins when both of its ends are posted.
  Status post(double now, const Place& place) {
    const Step& one = step(place);
    if (one.peer >= size_) return misfit("rank " + std::to_string(one.peer) + " is out of range");
    const bool sends = one.kind == StepKind::send;
    const std::uint64_t from = sends ? place.rank : one.peer, to = sends ? one.peer : place.rank;
    std::vector<Place>& waiting = waiting_[(from * size_ + to) << 8 | one.round];
    if (waiting.empty() || step(waiting.front()).kind == one.kind) {
      waiting.push_back(place);
      return {};
    }
    const Place other = waiting.front();
    waiting.erase(waiting.begin());
    if (step(other).bytes != one.bytes) return misfit("the ends of a message have different sizes");
    const Place send = sends ? place : other;
    receives_.emplace(number(send), sends ? other : place);
    if (from == to) {
      add(now, Stage::on_link, send);
      return {};
    }
    const RankCost& source = model_.rank(send.rank);
    const double begin = out_[send.rank].serve(now, source.overhead + static_cast<double>(one.bytes) / source.injection);
    add(begin + source.overhead, Stage::on_link, send);
    return {};
  }

  void move(double now, const Place& send) {
    const double begin =
        wire(send).serve(now, static_cast<double>(step(send).bytes) / model_.link(send.rank, step(send).peer).bandwidth);
    add(begin, Stage::arriving, send);
  }

  // Its first bytes are at the receiver, but for the latency.
  void arrive(double now, const Place& send) {
    const std::uint32_t from = send.rank, to = step(send).peer;
    const auto bytes = static_cast<double>(step(send).bytes);
    double sent = now + bytes / model_.link(from, to).bandwidth;
    if (from != to) {
      const RankCost &source = model_.rank(from), &target = model_.rank(to);
      const double received = in_[to].serve(now, target.overhead + bytes / target.injection);
      sent = std::max({sent, now + bytes / source.injection, received + target.overhead + bytes / target.injection});
    }
    const auto receive = receives_.find(number(send));
    add(sent, Stage::done, send);
    add(sent + model_.link(from, to).latency, Stage::done, receive->second);
    receives_.erase(receive);
  }

  const std::span<const Schedule> schedules_;
  const CostModel& model_;
  const std::uint32_t size_;
  std::vector<Port> out_, in_, compute_;  // by rank
  std::vector<Port> wires_;               // by pair
  std::vector<std::vector<std::uint32_t>> waits_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
  std::unordered_map<std::uint64_t, std::vector<Place>> waiting_;  // ends of messages without their other one, by pair and round
  std::unordered_map<std::uint64_t, Place> receives_;              // of messages on their way, by the send
};

}  // namespace

Status CostModel::check() const {
  const auto of_rank = [](const char* what, std::uint32_t r) { return std::string(what) + " of rank " + std::to_string(r); };
  const auto of_link = [](const char* what, std::uint32_t from, std::uint32_t to) {
    return std::string(what) + " of the link from rank " + std::to_string(from) + " to " + std::to_string(to);
  };
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (!is_rate(rank(r).injection)) return bad_figure(of_rank("the injection bandwidth", r), rank(r).injection);
    if (!is_rate(rank(r).reduction)) return bad_figure(of_rank("the reduction rate", r), rank(r).reduction);
    if (!is_time(rank(r).overhead)) return bad_figure(of_rank("the message overhead", r), rank(r).overhead);
    for (std::uint32_t to = 0; to < size(); ++to) {
      if (!is_rate(link(r, to).bandwidth)) return bad_figure(of_link("the bandwidth", r, to), link(r, to).bandwidth);
      if (!is_time(link(r, to).latency)) return bad_figure(of_link("the latency", r, to), link(r, to).latency);
    }
  }
  return {};
}

std::vector<PairTraffic> traffic_of(std::span<const Schedule> schedules) {
  std::vector<PairTraffic> all;
  for (std::uint32_t r = 0; r < schedules.size(); ++r) {
    std::vector<PairTraffic> to(schedules.size());
    for (const Step& step : schedules[r].steps) {
      if (step.kind != StepKind::send || step.peer == r) continue;
      PairTraffic& pair = to[step.peer];
      pair = {r, step.peer, pair.bytes + step.bytes, pair.messages + 1};
    }
    std::erase_if(to, [](const PairTraffic& pair) { return pair.messages == 0; });
    all.insert(all.end(), to.begin(), to.end());
  }
  return all;
}

Result<double> predict(std::span<const Schedule> schedules, const CostModel& model) {
  if (schedules.size() != model.size()) {
    return Status(Code::invalid_argument, std::to_string(schedules.size()) + " schedules for " + std::to_string(model.size()) +
                                              " ranks; each rank has one");
  }
  HMC_TRY(model.check());
  return Prediction(schedules, model).run();
}

}  // namespace hmc
