// A job of real processes: each is forked before anything of HMC was used, and judged by its exit status.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api_testing.h"

extern "C" __attribute__((weak)) int __lsan_do_recoverable_leak_check();

namespace hmc::testing {

// Words that all processes of a job see, for what must not go through what is tested.
class Blackboard {
 public:
  static constexpr std::size_t words = 256;
  Blackboard() {
    void* memory = mmap(nullptr, sizeof(std::atomic<long>) * words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    words_ = static_cast<std::atomic<long>*>(memory);
  }
  ~Blackboard() { munmap(words_, sizeof(std::atomic<long>) * words); }
  Blackboard(const Blackboard&) = delete;
  Blackboard& operator=(const Blackboard&) = delete;
  std::atomic<long>& operator[](std::size_t i) const { return words_[i]; }
  // False: it took longer than 60 s.
  [[nodiscard]] bool wait(std::size_t i, long at_least) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (words_[i].load() < at_least) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  std::atomic<long>* words_;
};

struct Process {
  int rank;
  int size;
  std::string rendezvous;
  const Blackboard& board;

  [[nodiscard]] InitOptions options() const {
    InitOptions options;
    options.rank = rank;
    options.size = size;
    options.rendezvous = rendezvous;
    options.timeout_seconds = 60;
    return options;
  }
  [[nodiscard]] Communicator init() const { return init(options()); }
  [[nodiscard]] Communicator init(const InitOptions& with) const {
    auto communicator = Communicator::init(with);
    EXPECT_TRUE(communicator.ok()) << "rank " << rank << ": " << communicator.status().str();
    return communicator.ok() ? *communicator : Communicator();
  }
};

struct JobOptions {
  std::set<int> killed = {};    // processes that are expected to end by SIGKILL
  unsigned limit = 150;         // seconds
  std::string rendezvous = {};  // default: a Unix path of the job's own
};

// Runs `body` in `size` processes and expects each to succeed. A test may use HMC itself only after its jobs.
inline void run_job(int size, const std::function<void(const Process&)>& body, const JobOptions& options = {}) {
  std::string folder = (std::filesystem::temp_directory_path() / "hmc-job-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Blackboard board;
  const std::string rendezvous = options.rendezvous.empty() ? "unix:" + folder + "/meet" : options.rendezvous;
  std::fflush(nullptr);
  std::vector<pid_t> children;
  wait_until_other_threads_sleep();
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // one that hangs in a sanitizer takes no alarm, and would hold the output open for ever
      alarm(options.limit);              // the handler of main.cc prints all stacks
      body(Process{rank, size, rendezvous, board});
      int code = ::testing::Test::HasFailure() ? 1 : 0;
      if (code == 0 && &__lsan_do_recoverable_leak_check != nullptr && __lsan_do_recoverable_leak_check() != 0) code = 3;
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[static_cast<std::size_t>(rank)], &status, 0), children[static_cast<std::size_t>(rank)]);
    if (options.killed.contains(rank)) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
          << "process " << rank << " was to be killed, status " << status;
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "process " << rank << (WIFSIGNALED(status) ? " ended by signal " : " failed with status ")
          << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

inline void die() { static_cast<void>(kill(getpid(), SIGKILL)); }
}  // namespace hmc::testing
