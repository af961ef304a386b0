// measure() in real jobs: every rank plans with the same figures from then on, and ranks that die, stop or call something else end
// it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "collective/job.h"
#include "collective/launch.h"
#include "hmc/hmc.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::Process;
using testing::run_job;
using testing::soon;

// Two hosts that were written down, without bandwidths; each process brings `each` CPU Members.
InitOptions two_hosts(const Process& process, int each) {
  InitOptions options = process.options();
  Topology written;
  written.hosts = {"a", "b"};
  for (int p = 0; p < process.size; ++p) {
    for (int i = 0; i < each; ++i) {
      TopologyCard card;
      card.host = written.hosts[p < process.size / 2 ? 0 : 1];
      card.name = "c" + std::to_string(p) + "-" + std::to_string(i);
      card.process = p;
      written.cards.push_back(card);
    }
  }
  options.topology = written;
  return options;
}

// Alike where two ranks have the same figures.
long digest(const Measurement& measured) {
  std::string text = std::to_string(measured.time);
  for (const MeasuredLink& link : measured.links) {
    char row[128];
    std::snprintf(row, sizeof row, "%d %d %a %a\n", link.source, link.target, link.latency_us, link.bandwidth);
    text += row;
  }
  return static_cast<long>(job_hash(text) >> 1);
}
long digest(const CollectivePlan& plan) {
  std::string text = plan.algorithm;
  for (const PlannedLink& link : plan.links)
    text += " " + std::to_string(link.source) + ":" + std::to_string(link.target) + ":" + std::to_string(link.bytes);
  return static_cast<long>(job_hash(text) >> 1);
}

// Every byte is that of the sum, whoever had which share.
void expect_sums(const Communicator& comm, std::size_t count) {
  std::vector<std::vector<std::int32_t>> in, out;
  std::vector<MemberBuffers> members;
  for (const Member& member : comm.local()) {
    in.emplace_back(count);
    out.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i)
      in.back()[i] = static_cast<std::int32_t>(i * 7 + static_cast<std::size_t>(member.rank() + 1) * 1000003);
  }
  for (std::size_t m = 0; m < in.size(); ++m) {
    members.push_back({comm.local()[m], MemoryView(out[m].data(), count * 4), MemoryView(in[m].data(), count * 4)});
  }
  const Reduction sum{.type = DataType::i32, .op = ReduceOp::sum};
  const Status done = comm.all_reduce(members, sum, soon(), "hierarchical");
  ASSERT_TRUE(done.ok()) << done.str();
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (const auto& result : out) {
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(result[i], static_cast<std::int32_t>(i * 7 * ranks + ranks * (ranks + 1) / 2 * 1000003)) << i;
  }
}

class Measure : public ::testing::Test {
 protected:
  void SetUp() override { setenv("HMC_CACHE", folder_.path().c_str(), 1); }
  void TearDown() override { unsetenv("HMC_CACHE"); }
  testing::TemporaryFolder folder_;
};

TEST_F(Measure, EveryRankPlansWithTheSameFigures) {
  for (const auto& [processes, each] : {std::pair(4, 1), std::pair(2, 3), std::pair(2, 1)}) {
    run_job(processes, [each = each](const Process& process) {
      const Communicator comm = process.init(two_hosts(process, each));
      const auto before = comm.plan("all_reduce", 4 << 20);
      ASSERT_TRUE(before.ok());
      EXPECT_NE(before->figures.find("estimated, not measured"), std::string::npos) << before->figures;
      const auto measured = comm.measure({.refresh = true}, soon());
      ASSERT_TRUE(measured.ok()) << measured.status().str();
      EXPECT_FALSE(measured->cached);
      EXPECT_FALSE(measured->links.empty());
      const auto plan = comm.plan("all_reduce", 4 << 20);
      ASSERT_TRUE(plan.ok());
      EXPECT_TRUE(plan->figures.starts_with(measured->origin() + "; links: ")) << plan->figures;
      for (const PlannedLink& link : plan->links) {
        const bool across = (link.source < comm.size() / 2) != (link.target < comm.size() / 2);
        EXPECT_TRUE(!across || link.basis == "measured") << link.source << " to " << link.target << ": " << link.basis;
      }
      const auto rank = static_cast<std::size_t>(process.rank);
      process.board[rank] = digest(*measured);
      process.board[64 + rank] = digest(*plan);
      ASSERT_TRUE(comm.barrier(soon()).ok());
      EXPECT_EQ(process.board[rank].load(), process.board[0].load()) << "figures differ";
      EXPECT_EQ(process.board[64 + rank].load(), process.board[64].load()) << "plans differ";
      if (comm.size() > 2) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{333'337}, std::size_t{2'000'003}}) expect_sums(comm, count);
      }
      ASSERT_TRUE(comm.barrier(soon()).ok());
    });
  }
}

TEST_F(Measure, SchedulesOfEarlierCallsAreNotUsedAnyMore) {
  run_job(4, [](const Process& process) {
    const Communicator comm = process.init(two_hosts(process, 1));
    for (int round = 0; round < 3; ++round) {
      expect_sums(comm, 500'009);
      const auto measured = comm.measure({.refresh = true}, soon());
      ASSERT_TRUE(measured.ok()) << measured.status().str();
      expect_sums(comm, 500'009);
    }
    ASSERT_TRUE(comm.barrier(soon()).ok());
  });
}

TEST_F(Measure, TheSecondJobReadsTheCache) {
  const testing::Blackboard times;
  for (const bool second : {false, true}) {
    run_job(3, [&](const Process& process) {
      const Communicator comm = process.init();
      const auto measured = comm.measure({}, soon());
      ASSERT_TRUE(measured.ok()) << measured.status().str();
      EXPECT_EQ(measured->cached, second);
      if (!second) times[0] = digest(*measured);
      EXPECT_EQ(times[0].load(), digest(*measured));
      EXPECT_EQ(comm.plan("broadcast", 1 << 20)->figures.find("from the cache") != std::string::npos, second);
      // One rank suffices to ask for new figures.
      const auto again = comm.measure({.refresh = process.rank == 2}, soon());
      ASSERT_TRUE(again.ok()) << again.status().str();
      EXPECT_FALSE(again->cached);
      if (!second) {
        ASSERT_TRUE(comm.barrier(soon()).ok());
        times[0] = digest(*again);
      }
      ASSERT_TRUE(comm.barrier(soon()).ok());
    });
  }
  // What a group depends on: another transport is another one, and so are other ranks, and these ranks in fewer processes.
  for (const int size : {3, 2, 1}) {
    run_job(size, [&](const Process& process) {
      InitOptions options = process.options();
      if (size == 3) options.context.transports = "local,tcp";
      if (size == 1) options.devices = std::vector(3, Device::cpu());
      const Communicator comm = process.init(options);
      const auto measured = comm.measure({}, soon());
      ASSERT_TRUE(measured.ok()) << measured.status().str();
      EXPECT_FALSE(measured->cached);
      ASSERT_TRUE(comm.barrier(soon()).ok());
    });
  }
}

TEST_F(Measure, ADamagedCacheIsMeasuredAgain) {
  for (const bool last : {false, true}) {
    run_job(2, [&](const Process& process) {
      const Communicator comm = process.init();
      const auto measured = comm.measure({}, soon());
      ASSERT_TRUE(measured.ok()) << measured.status().str();
      EXPECT_FALSE(measured->cached) << last;
      ASSERT_TRUE(comm.barrier(soon()).ok());
    });
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      ++files;
      if (last) continue;
      std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 7);
    }
    EXPECT_EQ(files, 1U);
  }
}

TEST_F(Measure, OneRankMeasuresNothing) {
  run_job(1, [](const Process& process) {
    const Communicator comm = process.init();
    const auto measured = comm.measure({}, soon());
    ASSERT_TRUE(measured.ok()) << measured.status().str();
    EXPECT_TRUE(measured->links.empty());
    EXPECT_TRUE(comm.plan("all_reduce", 4)->figures.starts_with("measured "));
    ASSERT_TRUE(comm.close(soon()).ok());
    EXPECT_EQ(comm.measure({}, soon()).status().code(), Code::closed);
  });
  EXPECT_EQ(Communicator().measure().status().code(), Code::invalid_argument);
}

TEST_F(Measure, IsNoPartOfABatch) {
  run_job(2, [](const Process& process) {
    const Communicator comm = process.init();
    {
      auto batch = comm.batch();
      ASSERT_TRUE(batch.ok());
      EXPECT_EQ(comm.measure({}, soon()).status().code(), Code::invalid_argument);
    }
    ASSERT_TRUE(comm.barrier(soon()).ok());
    EXPECT_TRUE(comm.measure({}, soon()).ok());
    ASSERT_TRUE(comm.barrier(soon()).ok());
  });
}

TEST_F(Measure, AnotherCallIsNamedOnBothSides) {
  run_job(2, [](const Process& process) {
    const Communicator comm = process.init();
    const Status failed = process.rank == 0 ? comm.measure({}, soon()).status() : comm.self()->exchange_bytes({}, soon()).status();
    EXPECT_EQ(failed.code(), Code::invalid_argument) << failed.str();
    EXPECT_NE(failed.message().find("measure"), std::string::npos) << failed.str();
    EXPECT_NE(failed.message().find("exchange_bytes"), std::string::npos) << failed.str();
  });
}

// At many moments: before, between and amid the pairs.
TEST_F(Measure, ARankThatDiesEndsItOnAll) {
  for (const int victim : {0, 1, 3}) {
    for (const int after_ms : {0, 5, 20, 60, 150}) {
      run_job(4,
              [=](const Process& process) {
                const Communicator comm = process.init(two_hosts(process, 1));
                ASSERT_TRUE(comm.barrier(soon()).ok());
                if (process.rank == victim) {
                  std::thread([=] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
                    testing::die();
                  }).detach();
                }
                // Again and again, so that it dies within one. A rank may have completed the call that others fail in.
                Status status;
                while (status.ok()) status = comm.measure({.refresh = true}, soon()).status();
                EXPECT_TRUE(status.code() == Code::peer_lost || status.code() == Code::closed) << status.str();
                EXPECT_NE(status.message().find("rank " + std::to_string(victim)), std::string::npos) << status.str();
                const auto left = comm.shrink(soon());
                ASSERT_TRUE(left.ok()) << left.status().str();
                EXPECT_EQ(left->size(), 3);
                EXPECT_TRUE(left->plan("all_reduce", 4)->figures.starts_with("estimated")) << "figures of another group";
                const auto measured = left->measure({.refresh = true}, soon());
                EXPECT_TRUE(measured.ok()) << measured.status().str();
                ASSERT_TRUE(left->barrier(soon()).ok());
              },
              {.killed = {victim}});
    }
  }
}

TEST_F(Measure, ARankThatStopsIsATimeout) {
  run_job(3, [](const Process& process) {
    const Communicator comm = process.init();
    process.board[static_cast<std::size_t>(process.rank)] = getpid();
    ASSERT_TRUE(comm.measure({.refresh = true}, soon()).ok());  // all are connected
    if (process.rank == 1) {
      process.board[10] = 1;
      ASSERT_EQ(raise(SIGSTOP), 0);
      // Its own call ends with the reason of the others.
      const Status failed = comm.measure({.refresh = true}, soon()).status();
      EXPECT_EQ(failed.code(), Code::timeout) << failed.str();
      return;
    }
    ASSERT_TRUE(process.board.wait(10, 1));
    ASSERT_TRUE(testing::wait_until_stopped(static_cast<pid_t>(process.board[1].load())));
    const Status failed = comm.measure({.refresh = true}, Deadline::after_seconds(1.5)).status();
    // The first to time out tells the other, before its call where that comes late.
    if (failed.code() == Code::timeout) {
      process.board[12] += 1;
      EXPECT_NE(failed.message().find("rank 1"), std::string::npos) << failed.str();
    } else {
      EXPECT_EQ(failed.code(), Code::closed) << failed.str();
    }
    EXPECT_EQ(comm.measure({}, soon()).status().code(), Code::closed);
    process.board[11] += 1;
    ASSERT_TRUE(process.board.wait(11, 2));
    EXPECT_GE(process.board[12].load(), 1);
    if (process.rank == 0) kill(static_cast<pid_t>(process.board[1].load()), SIGCONT);
  });
}

TEST_F(Measure, AbortEndsIt) {
  run_job(2, [](const Process& process) {
    const Communicator comm = process.init();
    ASSERT_TRUE(comm.barrier(soon()).ok());
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 2));  // an abort ends the barrier of a rank that is still in it
    std::thread aborts;
    if (process.rank == 1) {
      aborts = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        EXPECT_TRUE(comm.abort("enough").ok());
      });
    }
    Status status;
    while (status.ok()) status = comm.measure({.refresh = true}, soon()).status();
    EXPECT_EQ(status.code(), Code::cancelled) << status.str();
    EXPECT_NE(status.message().find("enough"), std::string::npos) << status.str();
    if (aborts.joinable()) aborts.join();
  });
}

}  // namespace
}  // namespace hmc
