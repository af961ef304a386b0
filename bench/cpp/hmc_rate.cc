// Message rate between two processes, a core each: windows of 16 sends and receives, each window waited for as a whole. Prints one
// JSON object per size: {"operation": "rate", "bytes": ..., "seconds": ...}, seconds per message. Usage: hmc_rate [repeat]
// [transports]
#include <hmc/hmc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "baseline.h"
#include "check.h"

namespace {

using bench::check;

constexpr std::size_t window = 16;
constexpr int windows = 4000;  // per sample

// One window: side 0 sends, side 1 receives.
void exchange(const hmc::Member& self, int side, std::vector<char>& memory, std::size_t bytes) {
  std::array<hmc::Work, window> works;
  for (std::size_t i = 0; i < window; ++i) {
    const hmc::MemoryView message(memory.data() + i * bytes, bytes);
    works[i] = side == 0 ? check(self.isend(message, 1)) : check(self.irecv(message, 0));
  }
  check(hmc::wait_all(works));
}

void run(const hmc::Communicator& comm, int side, int repeat) {
  const hmc::Member self = check(comm.self());
  for (const std::size_t bytes : {8U, 64U, 256U, 1024U}) {
    std::vector<char> memory(window * bytes, static_cast<char>(side));
    std::vector<double> samples;
    for (int sample = 0; sample <= repeat; ++sample) {
      check(comm.barrier());
      const auto start = bench::Clock::now();
      for (int i = 0; i < windows; ++i) exchange(self, side, memory, bytes);
      if (sample > 0) samples.push_back(bench::seconds_since(start) / windows / window);
    }
    check(comm.barrier());
    if (side != 1) continue;  // the receiver's time: all have arrived
    std::printf("{\"operation\": \"rate\", \"bytes\": %zu, \"seconds\": %.9g}\n", bytes, bench::median(samples));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int repeat = argc > 1 ? std::atoi(argv[1]) : 5;
  hmc::InitOptions options;
  options.size = 2;
  options.rendezvous = "unix:/tmp/hmc-rate-" + std::to_string(getpid());
  options.context.transports = argc > 2 ? argv[2] : "";
  const pid_t child = bench::fork_partner();
  const int side = child == 0 ? 1 : 0;
  bench::pin_to_core(side);
  options.rank = side;
  const hmc::Communicator comm = check(hmc::Communicator::init(options));
  run(comm, side, repeat);
  check(comm.close());
  if (side == 1) return 0;
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
