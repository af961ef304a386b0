// Forming a job: who comes, who does not, who comes twice.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <limits>

#include "collective/job.h"

namespace hmc {
namespace {

using testing::Process;
using testing::run_job;
using testing::soon;
using testing::wait_until_stopped;

void expect_world(const Process& process, const Communicator& world) {
  ASSERT_TRUE(world.valid());
  EXPECT_EQ(world.size(), process.size);
  ASSERT_EQ(world.local().size(), 1U);
  EXPECT_EQ(world.local()[0].rank(), process.rank);
  EXPECT_EQ(world.local()[0].size(), process.size);
  ASSERT_TRUE(world.self().ok());
  EXPECT_TRUE(world.lost().empty());
  HMC_EXPECT_OK(world.barrier(soon()));
}

TEST(Init, JobsOfSeveralSizes) {
  for (const int size : {1, 2, 4, 7}) {
    run_job(size, [](const Process& process) {
      const Communicator world = process.init();
      expect_world(process, world);
      HMC_EXPECT_OK(world.close());
      HMC_EXPECT_OK(world.close());
      EXPECT_EQ(world.barrier().code(), Code::closed);
    });
  }
}

// The shortest job: some ranks have left before the others know that it has formed.
TEST(Init, RanksMayLeaveAtOnce) {
  for (int round = 0; round < 10; ++round) {
    run_job(3, [](const Process& process) {
      const Communicator world = process.init();
      EXPECT_EQ(world.size(), 3);
    });
  }
}

TEST(Init, RankZeroComesLast) {
  run_job(3, [](const Process& process) {
    if (process.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    const Communicator world = process.init();
    expect_world(process, world);
  });
}

TEST(Init, OverTcpOnLoopback) {
  // A free port, which this socket keeps from other programs. With SO_REUSEADDR on both sockets rank 0 can listen there.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  run_job(3, [](const Process& process) { expect_world(process, process.init()); },
          {.killed = {}, .rendezvous = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port))});
  close(fd);
}

TEST(Init, FromTheEnvironmentOfHmcRun) {
  run_job(2, [](const Process& process) {
    setenv("HMC_RANK", std::to_string(process.rank).c_str(), 1);
    setenv("HMC_SIZE", "2", 1);
    setenv("HMC_LOCAL_RANK", std::to_string(process.rank).c_str(), 1);
    setenv("HMC_LOCAL_SIZE", "2", 1);
    setenv("HMC_RENDEZVOUS", process.rendezvous.c_str(), 1);
    expect_world(process, process.init({}));
  });
}

TEST(Init, FromTheEnvironmentOfMpirun) {
  run_job(2, [](const Process& process) {
    setenv("OMPI_COMM_WORLD_RANK", std::to_string(process.rank).c_str(), 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(process.rank).c_str(), 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    expect_world(process, process.init({}));  // no job id: the parent's process id serves
  });
}

TEST(Init, AgainAndAgainAtTheSamePlace) {
  run_job(3, [](const Process& process) {
    for (int round = 0; round < 3; ++round) {
      const Communicator world = process.init();
      expect_world(process, world);
      if (round == 1) HMC_EXPECT_OK(world.close());  // else closed by its last handle
    }
  });
}

// With more time where the host is so loaded that the answers of rank 0 come after the deadlines of the others.
TEST(Init, MissingRankIsNamedByEverybody) {
  run_job(4, [](const Process& process) {
    if (process.rank == 2) return;
    InitOptions options = process.options();
    std::size_t word = 0;
    for (const double limit : {2.0, 10.0, 30.0}) {
      options.timeout_seconds = limit;
      const std::size_t begun = word++, named = word++, ended = word++;
      process.board[begun].fetch_add(1);
      ASSERT_TRUE(process.board.wait(begun, 3));
      const auto world = Communicator::init(options);
      ASSERT_FALSE(world.ok());
      EXPECT_EQ(world.status().code(), Code::timeout) << world.status().str();
      if (world.status().message().find("rank 2") != std::string_view::npos) process.board[named].fetch_add(1);
      process.board[ended].fetch_add(1);
      ASSERT_TRUE(process.board.wait(ended, 3));
      if (process.board[named].load() == 3) return;
    }
    ADD_FAILURE() << "not every process named rank 2";
  });
}

TEST(Init, MissingRankZeroIsNamed) {
  run_job(2, [](const Process& process) {
    if (process.rank == 0) return;
    InitOptions options = process.options();
    options.timeout_seconds = 0.5;
    const auto world = Communicator::init(options);
    ASSERT_FALSE(world.ok());
    EXPECT_EQ(world.status().code(), Code::timeout) << world.status().str();
    EXPECT_NE(world.status().message().find("rank 0"), std::string_view::npos) << world.status().str();
  });
}

// Before it hears of the other, and while it forms the job.
TEST(Init, StoppedRankZeroDoesNotDelayTheDeadline) {
  for (const bool joined : {false, true}) {
    run_job(3, [joined](const Process& process) {
      InitOptions options = process.options();
      if (process.rank == 0) {
        std::thread stops([&] {
          EXPECT_TRUE(process.board.wait(0, joined ? 1 : 0));
          std::this_thread::sleep_for(std::chrono::milliseconds(1000));  // listening, and with rank 1 if that has come
          process.board[1].store(getpid());
          raise(SIGSTOP);
        });
        options.timeout_seconds = 2;
        static_cast<void>(Communicator::init(options));  // rank 2 never comes
        stops.join();
        return;
      }
      if (process.rank == 2) {
        ASSERT_TRUE(process.board.wait(2, 1));
        ASSERT_TRUE(process.board.wait(1, 1));
        ASSERT_TRUE(wait_until_stopped(static_cast<pid_t>(process.board[1].load())));
        kill(static_cast<pid_t>(process.board[1].load()), SIGCONT);
        return;
      }
      if (!joined) {
        ASSERT_TRUE(process.board.wait(1, 1));
        ASSERT_TRUE(wait_until_stopped(static_cast<pid_t>(process.board[1].load())));
      }
      process.board[0].store(1);
      options.timeout_seconds = 3;
      const auto start = std::chrono::steady_clock::now();
      const auto world = Communicator::init(options);
      const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      process.board[2].store(1);
      ASSERT_FALSE(world.ok());
      EXPECT_EQ(world.status().code(), Code::timeout) << world.status().str();
      EXPECT_LT(took, 30) << world.status().str();  // rank 0 stays stopped until then
    });
  }
}

// The later one of two that claim rank 1. The job waits for it until it comes with a rank of its own.
TEST(Init, RankTakenTwiceIsRefusedWithBothNames) {
  run_job(3, [](const Process& process) {
    InitOptions options = process.options();
    options.rank = process.rank == 0 ? 0 : 1;
    options.timeout_seconds = 60;
    options.context.name = "process-" + std::to_string(process.rank);
    auto world = Communicator::init(options);
    if (!world.ok()) {
      ASSERT_NE(process.rank, 0) << world.status().str();
      EXPECT_EQ(process.board[0].fetch_add(1), 0);
      EXPECT_EQ(world.status().code(), Code::invalid_argument) << world.status().str();
      EXPECT_NE(world.status().message().find("process-1"), std::string_view::npos) << world.status().str();
      EXPECT_NE(world.status().message().find("process-2"), std::string_view::npos) << world.status().str();
      options.rank = 2;
      world = Communicator::init(options);
    }
    HMC_ASSERT_OK(world.status());
    HMC_EXPECT_OK(world->barrier(soon()));
    EXPECT_EQ(process.board[0].load(), 1);
  });
}

TEST(Init, SizesMustAgree) {
  run_job(2, [](const Process& process) {
    InitOptions options = process.options();
    options.timeout_seconds = 60;
    if (process.rank == 1) {
      options.size = 3;
      const auto refused = Communicator::init(options);
      EXPECT_EQ(refused.status().code(), Code::invalid_argument) << refused.status().str();
      options.size = 2;
    }
    expect_world(process, process.init(options));  // rank 0 has waited for it
  });
}

// Rank 3 never comes. Rank 2 comes, and is killed while the others still wait for rank 3.
TEST(Init, DeathWhileTheJobForms) {
  run_job(4,
          [](const Process& process) {
            if (process.rank == 3) return;
            if (process.rank == 2) {
              std::thread([&] {
                static_cast<void>(process.board.wait(0, 1));
                testing::die();
              }).detach();
              static_cast<void>(Communicator::init(process.options()));
              return;
            }
            if (process.rank == 1) {
              // Rank 0 knows of rank 2 once it answers a deadline of rank 1 with rank 3 alone.
              InitOptions options = process.options();
              options.timeout_seconds = 3;
              const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(50);
              std::string answer;
              while (answer.find("did not come before the deadline: rank 3") == std::string::npos) {
                ASSERT_LT(std::chrono::steady_clock::now(), give_up) << answer;
                answer = Communicator::init(options).status().str();
              }
              process.board[0].store(1);
              return;
            }
            const auto world = Communicator::init(process.options());
            ASSERT_FALSE(world.ok());
            EXPECT_EQ(world.status().code(), Code::peer_lost) << world.status().str();
            EXPECT_NE(world.status().message().find("rank 2"), std::string_view::npos) << world.status().str();
          },
          {.killed = {2}, .rendezvous = {}});
}

// Rank 1 refuses the devices of the others after the first round, and closes. init() of all has no timeout.
TEST(Init, AProcessThatEndsBeforeItIsReadyIsNamed) {
  const auto other = Topology::parse(
      "hmc-topology 1\nhost a\ncard zero host=a process=0\ncard one host=a process=1\ncard two host=a process=2\n"
      "card three host=a process=2\n");
  ASSERT_TRUE(other.ok()) << other.status().str();
  run_job(3, [&](const Process& process) {
    InitOptions options = process.options();
    options.timeout_seconds = std::numeric_limits<double>::infinity();
    if (process.rank == 1) options.topology = *other;
    const auto world = Communicator::init(options);
    ASSERT_FALSE(world.ok());
    EXPECT_EQ(world.status().code(), process.rank == 1 ? Code::invalid_argument : Code::closed) << world.status().str();
    if (process.rank != 1) {
      EXPECT_NE(world.status().message().find("rank 1"), std::string_view::npos) << world.status().str();
    }
  });
}

TEST(Init, WrongKeyIsRefusedAtOnce) {
  run_job(2, [](const Process& process) {
    InitOptions options = process.options();
    options.context.key =
        process.rank == 0 ? "hmc1-one-key-of-enough-length-000000000000000" : "hmc1-another-key-of-length-0000000000000000";
    options.timeout_seconds = 3;
    const auto world = Communicator::init(options);
    ASSERT_FALSE(world.ok());
  });
}

TEST(Init, BadOptionsAreRefused) {
  run_job(1, [](const Process& process) {
    const auto code = [](const InitOptions& options) { return Communicator::init(options).status().code(); };
    InitOptions options = process.options();
    options.rank = 1;
    EXPECT_EQ(code(options), Code::invalid_argument);
    options = process.options();
    options.size = 2;
    options.rendezvous = "http://nowhere";
    EXPECT_EQ(code(options), Code::invalid_argument);
    if (const auto absent = Device::parse("cuda:999"); absent.ok()) {
      options = process.options();
      options.devices = {*absent};
      EXPECT_EQ(code(options), Code::unsupported);
    }
    options = process.options();
    options.timeout_seconds = -1;
    EXPECT_EQ(code(options), Code::invalid_argument);
  });
}

TEST(Init, SixtyFourProcesses) {
  run_job(64,
          [](const Process& process) {
            const Communicator world = process.init();
            ASSERT_TRUE(world.valid());
            HMC_ASSERT_OK(world.barrier(soon()));
            std::vector<std::byte> in(64 * 64), out(64 * 64);
            for (std::size_t r = 0; r < 64; ++r) {
              for (std::size_t i = 0; i < 64; ++i)
                in[r * 64 + i] = testing::pattern_byte(i, static_cast<std::uint64_t>(process.rank) * 64 + r);
            }
            HMC_ASSERT_OK(world.local()[0].all_to_all({out.data(), out.size()}, {in.data(), in.size()}, soon()));
            for (std::size_t r = 0; r < 64; ++r) {
              ASSERT_EQ(
                  testing::first_mismatch(std::span(out).subspan(r * 64, 64), r * 64 + static_cast<std::uint64_t>(process.rank)),
                  -1);
            }
          },
          {.killed = {}, .limit = 170, .rendezvous = {}});
}

}  // namespace
}  // namespace hmc
