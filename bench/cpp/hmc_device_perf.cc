// HMC between the devices of two processes, in C++; hmc_cuda_raw is its baseline. Rank 0 prints one JSON object per measured point:
// {"operation": "put" | "get", "bytes": ..., "seconds": per operation, waited for}, and
// {"operation": "isend", "stream": ..., "bytes": ..., "seconds": of the call alone}, with the device's default stream and without.
// Usage: hmc run -n 2 hmc_device_perf [device of rank 0 [device of rank 1 [largest bytes]]]
#include <hmc/hmc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "check.h"

namespace {

using bench::check;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

// Median of samples of many operations each, as hmc_cuda_raw takes them.
template <class Operation>
double operation_seconds(std::size_t bytes, const Operation& operation) {
  const std::size_t calls = std::clamp<std::size_t>((std::size_t{1} << 30) / bytes, 8, 500);
  std::vector<double> samples;
  for (int sample = 0; sample < 8; ++sample) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) check(check(operation()).wait());
    if (sample != 0) samples.push_back(seconds_since(start) / static_cast<double>(calls));
  }
  return median(samples);
}

void one_sided(const hmc::Communicator& comm, const hmc::Member& self, const hmc::Device& device, std::size_t largest) {
  const hmc::ConnBuffer buffer = check(comm.buffer(largest, device));
  const auto remotes = check(self.exchange(buffer));
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20,
                                  std::size_t{16} << 20, std::size_t{64} << 20, std::size_t{256} << 20, std::size_t{1} << 30}) {
    if (self.rank() != 0 || bytes > largest) continue;
    const hmc::ConnBuffer here = check(buffer.slice(0, bytes));
    const hmc::RemoteBuffer there = check(remotes[1].slice(0, bytes));
    const double put = operation_seconds(bytes, [&] { return self.put(here, there); });
    const double get = operation_seconds(bytes, [&] { return self.get(here, there); });
    std::printf("{\"operation\": \"put\", \"bytes\": %zu, \"seconds\": %.9f}\n", bytes, put);
    std::printf("{\"operation\": \"get\", \"bytes\": %zu, \"seconds\": %.9f}\n", bytes, get);
    std::fflush(stdout);
  }
  check(comm.barrier());
}

// Median seconds of the call alone: each message is over before the next is sent.
double isend_seconds(const hmc::Communicator& comm, const hmc::Member& self, const hmc::MemoryView& view) {
  constexpr int calls = 400;
  std::vector<double> all;
  for (int i = 0; i < calls; ++i) {
    if (i % 20 == 0) check(comm.barrier());
    const auto start = Clock::now();
    hmc::Work work = self.rank() == 0 ? check(self.isend(view, 1)) : check(self.irecv(view, 0));
    all.push_back(seconds_since(start));
    check(work.wait());
  }
  return median(all);
}

void stream_ordered(const hmc::Communicator& comm, const hmc::Member& self, const hmc::Device& device) {
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
}

}  // namespace

int main(int argc, char** argv) {
  const hmc::Communicator comm = check(hmc::Communicator::init({}));
  const hmc::Member self = check(comm.self());
  const char* name = argc > 1 ? argv[std::min(self.rank() + 1, argc - 1)] : "cuda:0";
  const hmc::Device device = check(hmc::Device::parse(name));
  const std::size_t largest = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : std::size_t{1} << 30;
  one_sided(comm, self, device, largest);
  if (!device.is_cpu()) stream_ordered(comm, self, device);
  return 0;
}
