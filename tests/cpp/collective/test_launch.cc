// What is read from launchers' environments.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <string>

#include "collective/launch.h"
#include "testing.h"

namespace hmc {
namespace {

using Env = std::map<std::string, std::string>;

Result<LaunchInfo> read(const Env& env, int parent = 77) {
  return read_launch(
      [&](std::string_view name) -> std::optional<std::string> {
        const auto found = env.find(std::string(name));
        if (found == env.end() || found->second.empty()) return std::nullopt;
        return found->second;
      },
      [] { return Result<std::string>(std::string("/private")); }, std::to_string(parent));
}

Env with(Env env, const Env& more) {
  for (const auto& [name, value] : more) env[name] = value;
  return env;
}

Env without(Env env, const std::string& name) {
  env.erase(name);
  return env;
}

const Env hmc_env{
    {"HMC_RANK", "1"}, {"HMC_SIZE", "4"}, {"HMC_LOCAL_RANK", "1"}, {"HMC_LOCAL_SIZE", "4"}, {"HMC_RENDEZVOUS", "unix:/x"}};
const Env torch_env{{"RANK", "5"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "4"},
                    {"MASTER_ADDR", "h"},
                    {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_RUN_ID", "none"}};
const Env openmpi_env{{"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_SIZE", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                      {"PMIX_NAMESPACE", "prterun-1@1"}};
const Env mpich_env{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Env slurm_env{{"SLURM_PROCID", "3"},
                    {"SLURM_NTASKS", "6"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "1"},
                    {"SLURM_JOB_ID", "42"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_NNODES", "2"},
                    {"SLURM_TASKS_PER_NODE", "3(x2)"},
                    {"SLURM_JOB_NODELIST", "gpu[07-08]"}};

TEST(Launch, NothingMeansAJobOfOne) {
  const auto info = read({});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->launcher, "none");
  EXPECT_EQ(info->rank, 0);
  EXPECT_EQ(info->size, 1);
  EXPECT_EQ(info->rendezvous, "");
}

TEST(Launch, HmcRun) {
  const auto info = read(hmc_env);
  ASSERT_TRUE(info.ok()) << info.status().str();
  EXPECT_EQ(info->launcher, "hmc");
  EXPECT_EQ(info->rank, 1);
  EXPECT_EQ(info->size, 4);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->local_size, 4);
  EXPECT_EQ(info->rendezvous, "unix:/x");
}

TEST(Launch, TorchrunOverHostsMeetsAboveTheMasterPort) {
  const auto info = read(torch_env);
  ASSERT_TRUE(info.ok()) << info.status().str();
  EXPECT_EQ(info->launcher, "torchrun");
  EXPECT_EQ(info->rank, 5);
  EXPECT_EQ(info->local_size, 4);
  EXPECT_EQ(info->rendezvous, "tcp://h:29501");
  EXPECT_EQ(read(with(torch_env, {{"MASTER_ADDR", "fd00::1"}}))->rendezvous, "tcp://[fd00::1]:29501");
}

TEST(Launch, TorchVariablesSetByHand) {
  const Env sparse = without(torch_env, "LOCAL_WORLD_SIZE");
  const auto info = read(sparse);
  ASSERT_TRUE(info.ok()) << info.status().str();
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->rendezvous, "tcp://h:29501");
  EXPECT_EQ(read(without(sparse, "LOCAL_RANK"))->local_rank, 0);
  EXPECT_FALSE(read(with(sparse, {{"LOCAL_RANK", "x"}})).ok());
  EXPECT_FALSE(read(with(sparse, {{"LOCAL_RANK", "515"}, {"HMC_RENDEZVOUS", "tcp://a:1"}})).ok()) << "the job is smaller";
}

TEST(Launch, OneHostMeetsAtASocketNamedAfterTheJob) {
  const Env local = with(torch_env, {{"LOCAL_WORLD_SIZE", "8"}, {"LOCAL_RANK", "5"}});
  const auto one = read(local), again = read(with(local, {{"RANK", "6"}, {"LOCAL_RANK", "6"}})),
             other = read(with(local, {{"MASTER_PORT", "29501"}})),
             restarted = read(with(local, {{"TORCHELASTIC_RESTART_COUNT", "1"}}));
  ASSERT_TRUE(one.ok()) << one.status().str();
  EXPECT_TRUE(one->rendezvous.starts_with("unix:/private/job-")) << one->rendezvous;
  EXPECT_EQ(one->rendezvous, again->rendezvous);
  EXPECT_NE(one->rendezvous, other->rendezvous);
  EXPECT_NE(one->rendezvous, restarted->rendezvous);
}

TEST(Launch, OpenMpi) {
  const auto info = read(openmpi_env);
  ASSERT_TRUE(info.ok()) << info.status().str();
  EXPECT_EQ(info->launcher, "openmpi");
  EXPECT_EQ(info->rank, 2);
  EXPECT_EQ(info->local_rank, 2);
  EXPECT_NE(info->rendezvous, read(with(openmpi_env, {{"PMIX_NAMESPACE", "prterun-2@1"}}))->rendezvous);
  const Env anonymous = without(openmpi_env, "PMIX_NAMESPACE");
  EXPECT_EQ(read(anonymous, 5)->rendezvous, read(anonymous, 5)->rendezvous);
  EXPECT_NE(read(anonymous, 5)->rendezvous, read(anonymous, 6)->rendezvous);
}

TEST(Launch, MpiOverHostsNeedsARendezvous) {
  const auto openmpi = read(with(openmpi_env, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}));
  ASSERT_FALSE(openmpi.ok());
  EXPECT_EQ(openmpi.status().code(), Code::invalid_argument);
  EXPECT_NE(openmpi.status().message().find("HMC_RENDEZVOUS"), std::string_view::npos) << openmpi.status().message();
  const auto given = read(with(
      openmpi_env, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"HMC_RENDEZVOUS", "tcp://a:1"}}));
  ASSERT_TRUE(given.ok()) << given.status().str();
  EXPECT_EQ(given->rendezvous, "tcp://a:1");
  EXPECT_FALSE(read(without(without(mpich_env, "MPI_LOCALRANKID"), "MPI_LOCALNRANKS")).ok());
}

TEST(Launch, Mpich) {
  const auto info = read(mpich_env);
  ASSERT_TRUE(info.ok()) << info.status().str();
  EXPECT_EQ(info->launcher, "mpich");
  EXPECT_EQ(info->size, 2);
  EXPECT_TRUE(info->rendezvous.starts_with("unix:/private/job-"));
  EXPECT_NE(read(mpich_env, 5)->rendezvous, read(mpich_env, 6)->rendezvous);
  // Of its own name, where it has one.
  const Env by_port = with(mpich_env, {{"PMI_PORT", "node:4711"}});
  EXPECT_EQ(read(by_port, 5)->rendezvous, read(by_port, 6)->rendezvous);
  EXPECT_NE(read(by_port)->rendezvous, read(with(by_port, {{"PMI_PORT", "node:4712"}}))->rendezvous);
}

// Each rank has a parent of its own where a shell starts it.
TEST(Launch, MpichsProxyIsKnownBehindAShell) {
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  const std::string fd = std::to_string(pair[1]);
  const auto seen_by_grandchild = [&](bool has_fd) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    if (fork() == 0) {
      if (has_fd) setenv("PMI_FD", fd.c_str(), 1);
      if (fork() == 0) {
        const std::string starter = starter_of_this_host();
        _exit(write(ends[1], starter.data(), starter.size()) > 0 ? 0 : 1);
      }
      wait(nullptr);
      _exit(0);
    }
    close(ends[1]);
    std::array<char, 128> text{};
    const ssize_t length = ::read(ends[0], text.data(), text.size());
    close(ends[0]);
    wait(nullptr);
    return std::string(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  };
  const std::string first = seen_by_grandchild(true);
  EXPECT_TRUE(first.starts_with(std::to_string(getpid()) + " ")) << first;
  EXPECT_EQ(first, seen_by_grandchild(true));
  EXPECT_NE(seen_by_grandchild(false), seen_by_grandchild(false));
  setenv("PMI_FD", "9999", 1);  // closed, or of no socket
  EXPECT_TRUE(starter_of_this_host().starts_with(std::to_string(getppid()) + " "));
  unsetenv("PMI_FD");
  for (const int end : pair) close(end);
}

TEST(Launch, Slurm) {
  const auto info = read(slurm_env);
  ASSERT_TRUE(info.ok()) << info.status().str();
  EXPECT_EQ(info->launcher, "slurm");
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->size, 6);
  EXPECT_EQ(info->local_size, 3);
  EXPECT_TRUE(info->rendezvous.starts_with("tcp://gpu07:")) << info->rendezvous;
  EXPECT_EQ(info->rendezvous, read(with(slurm_env, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}}))->rendezvous);
  EXPECT_NE(info->rendezvous, read(with(slurm_env, {{"SLURM_STEP_ID", "1"}}))->rendezvous);
  // A batch script is not a task of a step, whatever numbers it sees.
  EXPECT_EQ(read(without(slurm_env, "SLURM_STEP_ID"))->launcher, "none");
  // srun --mpi=pmi2 sets PMI_RANK too.
  EXPECT_EQ(read(with(slurm_env, {{"PMI_RANK", "3"}, {"PMI_SIZE", "6"}}))->launcher, "slurm");
  const auto local = read(with(slurm_env, {{"SLURM_NNODES", "1"}, {"SLURM_LOCALID", "3"}}));
  ASSERT_TRUE(local.ok()) << local.status().str();
  EXPECT_TRUE(local->rendezvous.starts_with("unix:"));
}

TEST(Launch, Precedence) {
  const Env all = with(with(with(with(slurm_env, mpich_env), openmpi_env), torch_env), hmc_env);
  EXPECT_EQ(read(all)->launcher, "hmc");
  Env some = all;
  for (const auto& [name, value] : hmc_env) some.erase(name);
  EXPECT_EQ(read(some)->launcher, "torchrun");
  for (const auto& [name, value] : torch_env) some.erase(name);
  EXPECT_EQ(read(some)->launcher, "openmpi");
  for (const auto& [name, value] : openmpi_env) some.erase(name);
  EXPECT_EQ(read(some)->launcher, "mpich");
}

TEST(Launch, HalfSetAndWrongNumbersAreNamed) {
  const auto names = [](const Env& env, std::string_view name) {
    const auto info = read(env);
    return !info.ok() && info.status().code() == Code::invalid_argument &&
           info.status().message().find(name) != std::string_view::npos;
  };
  EXPECT_TRUE(names(without(hmc_env, "HMC_SIZE"), "HMC_SIZE"));
  EXPECT_TRUE(names(without(hmc_env, "HMC_RANK"), "HMC_RANK"));
  EXPECT_TRUE(names(without(hmc_env, "HMC_RENDEZVOUS"), "HMC_RENDEZVOUS"));
  EXPECT_TRUE(names(without(hmc_env, "HMC_LOCAL_SIZE"), "HMC_LOCAL_SIZE"));
  EXPECT_TRUE(names(with(hmc_env, {{"HMC_RANK", "4"}}), "HMC_RANK=4"));
  EXPECT_TRUE(names(with(hmc_env, {{"HMC_RANK", "-1"}}), "HMC_RANK=-1"));
  EXPECT_TRUE(names(with(hmc_env, {{"HMC_SIZE", "4x"}}), "HMC_SIZE=4x"));
  EXPECT_TRUE(names(with(hmc_env, {{"HMC_SIZE", "99999999999"}}), "HMC_SIZE"));
  EXPECT_TRUE(names(with(hmc_env, {{"HMC_LOCAL_SIZE", "9"}}), "HMC_LOCAL_SIZE=9"));
  EXPECT_TRUE(names(without(torch_env, "WORLD_SIZE"), "WORLD_SIZE"));
  EXPECT_TRUE(names(without(torch_env, "MASTER_ADDR"), "MASTER_ADDR"));
  EXPECT_TRUE(names(without(torch_env, "MASTER_PORT"), "MASTER_PORT"));
  EXPECT_TRUE(names(with(torch_env, {{"MASTER_PORT", "65535"}}), "MASTER_PORT=65535"));
  EXPECT_TRUE(names(without(openmpi_env, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE"));
  EXPECT_TRUE(names(without(mpich_env, "PMI_SIZE"), "PMI_SIZE"));
  EXPECT_TRUE(names(without(slurm_env, "SLURM_NTASKS"), "SLURM_NTASKS"));
}

TEST(Launch, SlurmLists) {
  EXPECT_EQ(first_slurm_host("gpu07"), "gpu07");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("gpu[07-09,12],x"), "gpu07");
  EXPECT_EQ(first_slurm_host("gpu[12,14]"), "gpu12");
  EXPECT_EQ(first_slurm_host("n[1-2]-ib,z"), "n1-ib");
  EXPECT_EQ(first_slurm_host(""), "");
  EXPECT_EQ(first_slurm_host("bad["), "bad");
  EXPECT_EQ(slurm_tasks_on("4", 0), 4);
  EXPECT_EQ(slurm_tasks_on("4(x2),3", 1), 4);
  EXPECT_EQ(slurm_tasks_on("4(x2),3", 2), 3);
  EXPECT_EQ(slurm_tasks_on("4(x2),3", 3), std::nullopt);
  EXPECT_EQ(slurm_tasks_on("", 0), std::nullopt);
  EXPECT_EQ(slurm_tasks_on("4(x", 1), std::nullopt);
  EXPECT_EQ(slurm_tasks_on("x", 0), std::nullopt);
  EXPECT_EQ(slurm_tasks_on("2(x-2147483647),1", 1), std::nullopt);
  EXPECT_EQ(slurm_tasks_on("-2", 0), std::nullopt);
}

// Launchers that say nothing of where to meet do not have to.
TEST(Launch, AGivenRendezvousServesEveryLauncher) {
  using Set = std::vector<std::pair<const char*, const char*>>;
  for (const Set& set : {Set{{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                         Set{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}, Set{{"RANK", "1"}, {"WORLD_SIZE", "4"}},
                         Set{{"HMC_RANK", "1"}, {"HMC_SIZE", "4"}}}) {
    for (const auto& [name, value] : set) setenv(name, value, 1);
    InitOptions options;
    EXPECT_EQ(resolve_launch(options).status().code(), Code::invalid_argument) << set.front().first;
    options.rendezvous = "tcp://somewhere:5099";
    const auto info = resolve_launch(options);
    ASSERT_TRUE(info.ok()) << set.front().first << ": " << info.status().str();
    EXPECT_EQ(info->rank, 1);
    EXPECT_EQ(info->size, 4);
    EXPECT_EQ(info->rendezvous, "tcp://somewhere:5099");
    for (const auto& [name, value] : set) unsetenv(name);
  }
}

TEST(Launch, ExplicitOptionsComeFirst) {
  setenv("HMC_RANK", "3", 1);  // half-set, and not looked at
  InitOptions options;
  options.rank = 1;
  options.size = 2;
  options.rendezvous = "unix:/somewhere";
  const auto info = resolve_launch(options);
  ASSERT_TRUE(info.ok()) << info.status().str();
  EXPECT_EQ(info->rank, 1);
  EXPECT_EQ(info->size, 2);
  EXPECT_EQ(info->rendezvous, "unix:/somewhere");
  options.rendezvous.clear();
  EXPECT_EQ(resolve_launch(options).status().code(), Code::invalid_argument);
  options.size = -1;
  EXPECT_EQ(resolve_launch(options).status().code(), Code::invalid_argument);
  options.rank = 5;
  options.size = 5;
  EXPECT_EQ(resolve_launch(options).status().code(), Code::invalid_argument);
  options = {};
  EXPECT_EQ(resolve_launch(options).status().code(), Code::invalid_argument);  // HMC_SIZE is missing
  setenv("HMC_SIZE", "4", 1);
  setenv("HMC_RENDEZVOUS", "tcp://h:1", 1);
  EXPECT_EQ(resolve_launch(options)->rank, 3);
  options.rank = 3;
  options.size = 4;
  EXPECT_EQ(resolve_launch(options)->rendezvous, "tcp://h:1");
  for (const char* name : {"HMC_RANK", "HMC_SIZE", "HMC_RENDEZVOUS"}) unsetenv(name);
}

}  // namespace
}  // namespace hmc
