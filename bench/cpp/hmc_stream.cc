// What ordering behind a stream adds to the host's time per isend: rank 0 sends its device's memory to rank 1, with the device's
// default stream and without one. Prints {"operation": "isend", "stream": ..., "bytes": ..., "seconds": per call} from rank 0.
// Usage: hmc run -n 2 hmc_stream [device of rank 0 [device of rank 1]]
#include <hmc/hmc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "check.h"

namespace {

constexpr int calls = 400;

using bench::check;

// Median seconds of the call alone: each message is over before the next is sent.
double isend_seconds(const hmc::Communicator& comm, const hmc::Member& self, const hmc::MemoryView& view) {
  std::vector<double> all;
  for (int i = 0; i < calls; ++i) {
    if (i % 20 == 0) check(comm.barrier());
    const auto start = std::chrono::steady_clock::now();
    hmc::Work work = self.rank() == 0 ? check(self.isend(view, 1)) : check(self.irecv(view, 0));
    all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    check(work.wait());
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const hmc::Communicator comm = check(hmc::Communicator::init({}));
  const hmc::Member self = check(comm.self());
  const char* name = argc > 1 ? argv[std::min(self.rank() + 1, argc - 1)] : "cuda:0";
  const hmc::Device device = check(hmc::Device::parse(name));
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{64} << 10, std::size_t{1} << 20}) {
    const hmc::ConnBuffer buffer = check(comm.buffer(bytes, device));
    for (const bool ordered : {false, true}) {
      hmc::MemoryView view(buffer);
      view.stream = ordered ? hmc::default_stream : hmc::no_stream;
      const double seconds = isend_seconds(comm, self, view);
      if (self.rank() != 0) continue;
      std::printf("{\"operation\": \"isend\", \"stream\": %s, \"bytes\": %zu, \"seconds\": %.9f}\n", ordered ? "true" : "false",
                  bytes, seconds);
      std::fflush(stdout);
    }
  }
  check(comm.barrier());
  return 0;
}
