// What the examples share: results that must be good, and processes to talk between.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "hmc/hmc.h"

namespace example {

inline void must(const hmc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "failed: %s\n", status.str().c_str());
  std::exit(1);
}

template <class T>
T must(hmc::Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

// Runs `body(options)` in `size` processes, as `hmc run` or mpirun would start them (then hmc::Communicator::init() needs no
// options). A process that uses HMC must not be forked from one that has used it: all are started here, first. `killed`: how many
// are expected to be killed. Returns the exit status for main.
inline int run_processes(int size, const std::function<void(const hmc::InitOptions&)>& body, int killed = 0) {
  const std::string rendezvous = "unix:/tmp/hmc-example-" + std::to_string(getpid());
  for (int rank = 0; rank < size; ++rank) {
    if (fork() != 0) continue;
    hmc::InitOptions options;
    options.rank = rank;
    options.size = size;
    options.rendezvous = rendezvous;
    body(options);
    std::exit(0);
  }
  int failed = 0, dead = 0;
  for (int status = 0; wait(&status) > 0;) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++dead;
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ++failed;
    }
  }
  return failed == 0 && dead == killed ? 0 : 1;
}

}  // namespace example
