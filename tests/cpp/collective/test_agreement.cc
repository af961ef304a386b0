// The agreement of a shrink, simulated: messages, deaths and what is known of them, in random orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "collective/agreement.h"

namespace hmc {
namespace {

using State = Agreement::State;

struct Plan {
  std::uint32_t size = 3;
  std::uint32_t kills = 0;
  bool leaves = false;     // a process has closed its Communicator
  bool gives_up = false;   // the deadline of a process may pass
  double scope_taken = 0;  // how often a scope is not free
};

class Job {
 public:
  Job(const Plan& plan, std::uint64_t seed) : plan_(plan), random_(seed) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < plan.size; ++i) all.push_back(i);
    for (std::uint32_t i = 0; i < plan.size; ++i) processes_.push_back(std::make_unique<Process>(*this, i, all));
    queues_.resize(plan.size * plan.size);
    if (plan.leaves) processes_[pick(plan.size)]->left = true;
    kills_left_ = plan.kills;
  }

  void run() {
    for (int round = 0; round < 20000; ++round) {
      std::vector<std::function<void()>> events;
      for (const auto& process : processes_) offer(*process, events);
      if (kills_left_ > 0 && living() > 1) events.push_back([this] { kill(pick(plan_.size)); });
      if (events.empty()) return;
      events[pick(events.size())]();
    }
    ADD_FAILURE() << "it never ends";
  }

  void check() const {
    const Process* first = nullptr;
    bool failed = false;
    for (const auto& process : processes_) {
      if (process->dead || process->left) continue;
      const State state = process->agreement.state();
      failed = failed || state == State::failed;
      EXPECT_TRUE(state == State::committed || (plan_.gives_up && state == State::failed)) << process->self;
      if (state != State::committed) continue;
      if (first == nullptr) first = process.get();
      EXPECT_EQ(process->agreement.roster(), first->agreement.roster()) << process->self << " and " << first->self;
      // It has made the group that was agreed on.
      EXPECT_EQ(process->made, process->agreement.roster());
    }
    if (first == nullptr) return;
    const auto& members = first->agreement.roster().processes;
    for (const auto& process : processes_) {
      const bool member = std::ranges::binary_search(members, process->self);
      EXPECT_FALSE(member && process->left);
      EXPECT_TRUE(member || process->dead || process->left) << process->self;
      const bool hears = failed && !process->dead && process->agreement.state() == State::committed;
      EXPECT_TRUE(process->told || !hears) << process->self;
    }
  }

 private:
  struct Process final : Agreement::Host {
    Process(Job& of, std::uint32_t number, const std::vector<std::uint32_t>& all)
        : job(of), self(number), agreement(*this, number, all) {}
    bool alive(std::uint32_t other) const override { return !gone.contains(other); }
    void send(std::uint32_t to, job::Shrink message) override {
      if (!job.processes_[to]->dead) {
        job.queue(self, to).push_back(std::move(message));
      } else if (!gone.contains(to) && job.pick(2) == 0) {
        learn(to);  // the connection cannot be made
      }
    }
    void spread(job::Shrink message) override {
      for (std::uint32_t to = 0; to < job.processes_.size(); ++to) {
        if (to != self && !job.processes_[to]->dead) job.queue(self, to).push_back(message);
      }
    }
    std::uint32_t new_scope() override { return ++job.scopes_; }
    void incomplete(const Status& reason) override {
      EXPECT_FALSE(reason.ok());
      told = true;
    }
    void learn(std::uint32_t other) {
      gone.insert(other);
      agreement.on_gone();
    }

    Job& job;
    const std::uint32_t self;
    bool dead = false, left = false, told = false;
    int asked = 0;
    std::set<std::uint32_t> gone;
    Roster made;
    Agreement agreement;
  };

  std::size_t pick(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }
  std::deque<job::Shrink>& queue(std::uint32_t from, std::uint32_t to) { return queues_[from * plan_.size + to]; }
  std::size_t living() const {
    return static_cast<std::size_t>(std::ranges::count_if(processes_, [](const auto& process) { return !process->dead; }));
  }

  // What can happen at one process now.
  void offer(Process& process, std::vector<std::function<void()>>& events) {
    if (process.dead) return;
    for (std::uint32_t from = 0; from < plan_.size; ++from) {
      if (!queue(from, process.self).empty()) events.push_back([&, from] { deliver(from, process); });
      if (processes_[from]->dead && !process.gone.contains(from)) events.push_back([&, from] { process.learn(from); });
    }
    if (process.left) return;
    if (process.agreement.state() == State::waiting) events.push_back([&] { process.agreement.begin(); });
    if (process.agreement.to_prepare()) events.push_back([&] { prepare(process); });
    if (process.agreement.state() == State::open && process.asked < 2 && pick(20) == 0) {
      events.push_back([&] {
        ++process.asked;
        process.agreement.ask_who_is_missing();
      });
    }
    if (plan_.gives_up && process.agreement.state() == State::open && pick(20) == 0)
      events.push_back([&] { process.agreement.give_up(Status(Code::timeout, "late")); });
  }

  void deliver(std::uint32_t from, Process& to) {
    const job::Shrink message = std::move(queue(from, to.self).front());
    queue(from, to.self).pop_front();
    if (!to.left) return to.agreement.on_message(from, message);
    if (message.kind == job::ShrinkKind::ask || message.kind == job::ShrinkKind::join) to.send(from, {job::ShrinkKind::left});
  }

  void prepare(Process& process) {
    const Roster roster = *process.agreement.to_prepare();
    const bool free = std::uniform_real_distribution<>()(random_) >= plan_.scope_taken;
    if (free) process.made = roster;
    process.agreement.prepared(roster, free);
  }

  // Of what it has sent, some arrives.
  void kill(std::size_t number) {
    Process& process = *processes_[number];
    if (process.dead || process.left) return;
    process.dead = true;
    --kills_left_;
    for (std::uint32_t other = 0; other < plan_.size; ++other) {
      auto& sent = queue(process.self, other);
      sent.resize(pick(sent.size() + 1));
      queue(other, process.self).clear();
    }
  }

  const Plan plan_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::deque<job::Shrink>> queues_;
  std::uint32_t scopes_ = 1;
  std::uint32_t kills_left_ = 0;
};

class Agreeing : public ::testing::TestWithParam<Plan> {};

TEST_P(Agreeing, EverySurvivorHasTheSameRoster) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job(GetParam(), seed);
    job.run();
    job.check();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, Agreeing,
                         ::testing::Values(Plan{1}, Plan{2}, Plan{2, 1}, Plan{3, 1}, Plan{3, 2}, Plan{4, 1}, Plan{4, 3}, Plan{6, 4},
                                           Plan{5, 2, true}, Plan{4, 0, true}, Plan{4, 0, false, true}, Plan{5, 2, false, true},
                                           Plan{4, 2, true, true}, Plan{4, 2, false, false, 0.5}, Plan{5, 3, true, true, 0.3}),
                         [](const auto& p) {
                           const Plan& plan = p.param;
                           return std::to_string(plan.size) + "With" + std::to_string(plan.kills) + "Deaths" +
                                  (plan.leaves ? "OneLeft" : "") + (plan.gives_up ? "Deadlines" : "") +
                                  (plan.scope_taken > 0 ? "ScopesTaken" : "");
                         });

// A process that the others count as dead, though it lives, takes no part and hears why.
TEST(Agreement, AProcessCountedAsDeadIsRefused) {
  struct Quiet final : Agreement::Host {
    bool alive(std::uint32_t process) const override { return process != 1; }
    void send(std::uint32_t, job::Shrink message) override { sent.push_back(std::move(message)); }
    void spread(job::Shrink) override {}
    std::uint32_t new_scope() override { return 7; }
    void incomplete(const Status&) override {}
    std::vector<job::Shrink> sent;
  } host;
  Agreement agreement(host, 0, {0, 1});
  agreement.on_message(1, {job::ShrinkKind::join});
  ASSERT_EQ(host.sent.size(), 1U);
  EXPECT_EQ(host.sent[0].kind, job::ShrinkKind::refuse);
  Quiet other_host;
  Agreement other(other_host, 1, {0, 1});
  other.begin();
  other.on_message(0, host.sent[0]);
  EXPECT_EQ(other.state(), State::failed);
  EXPECT_EQ(other.reason().code(), Code::peer_lost);
  agreement.begin();
  agreement.prepared(*agreement.to_prepare(), true);
  EXPECT_EQ(agreement.state(), State::committed);
  EXPECT_EQ(agreement.roster(), (Roster{{0}, 7}));
}

// Processes that come before the agreement begins are part of it; messages that came meanwhile count.
TEST(Agreement, NewcomersExtendIt) {
  struct Recorder final : Agreement::Host {
    bool alive(std::uint32_t) const override { return true; }
    void send(std::uint32_t process, job::Shrink message) override { sent.emplace_back(process, std::move(message)); }
    void spread(job::Shrink) override {}
    std::uint32_t new_scope() override { return 7; }
    void incomplete(const Status&) override {}
    std::vector<std::pair<std::uint32_t, job::Shrink>> sent;
  } host;
  Agreement agreement(host, 0, {0, 1});
  agreement.on_message(1, {job::ShrinkKind::join});
  agreement.on_message(2, {job::ShrinkKind::join});  // not known yet
  agreement.extend(2);
  agreement.on_message(3, {job::ShrinkKind::join});
  agreement.begin();
  ASSERT_EQ(host.sent.size(), 1U);
  EXPECT_EQ(host.sent[0].first, 2U);
  EXPECT_EQ(host.sent[0].second.kind, job::ShrinkKind::ask);
  agreement.on_message(2, {job::ShrinkKind::join});
  ASSERT_TRUE(agreement.to_prepare());
  EXPECT_EQ(*agreement.to_prepare(), (Roster{{0, 1, 2, 3}, 7}));
}

// Whoever waits for a process that gives up before it has begun gets the reason; so does whoever asks later.
TEST(Agreement, GivenUpBeforeItBegins) {
  struct Recorder final : Agreement::Host {
    bool alive(std::uint32_t) const override { return true; }
    void send(std::uint32_t process, job::Shrink message) override { sent.emplace_back(process, std::move(message)); }
    void spread(job::Shrink) override {}
    std::uint32_t new_scope() override { return 7; }
    void incomplete(const Status&) override {}
    std::vector<std::pair<std::uint32_t, job::Shrink>> sent;
  } host;
  Agreement agreement(host, 1, {0, 1, 2});
  agreement.on_message(0, {job::ShrinkKind::ask});
  agreement.give_up(Status(Code::timeout, "too late"));
  EXPECT_EQ(agreement.state(), State::failed);
  agreement.on_message(2, {job::ShrinkKind::join});
  agreement.begin();
  ASSERT_EQ(host.sent.size(), 2U);
  for (const std::uint32_t process : {0U, 2U}) {
    const auto& [to, message] = host.sent[process / 2];
    EXPECT_EQ(to, process);
    EXPECT_EQ(message.kind, job::ShrinkKind::give_up);
    EXPECT_EQ(message.reason.code(), Code::timeout);
  }
}

}  // namespace
}  // namespace hmc
