// Collectives of hmc::Communicator in C++, f32. Rank 0 prints one JSON object per measured point: {"operation", "ranks", "bytes" of
// a rank's largest array, "alone": seconds of a call that is waited for, "in_a_row": seconds per call of many that are posted
// before any is waited for}. Medians of 7. Usage: hmc run -n N hmc_collective_perf [prefix of the ranks' devices [largest bytes
// [operation [smallest bytes]]]]; the prefix is "cuda:" by default, and rank r has the device of that number; "cpu" is the CPU.
#include <hmc/hmc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace {

using bench::check;
using Clock = std::chrono::steady_clock;
using Post = std::function<hmc::Result<hmc::Work>()>;

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

double seconds_per_call(const hmc::Communicator& comm, const Post& post, std::size_t calls, bool in_a_row) {
  std::vector<double> samples;
  for (int sample = 0; sample < 8; ++sample) {
    check(comm.barrier());
    const auto start = Clock::now();
    std::vector<hmc::Work> works;
    for (std::size_t i = 0; i < calls; ++i) {
      works.push_back(check(post()));
      if (!in_a_row) check(works.back().wait());
    }
    for (const hmc::Work& work : works) check(work.wait());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (sample != 0) samples.push_back(seconds / static_cast<double>(calls));
  }
  return median(samples);
}

void measure(const hmc::Communicator& comm, const hmc::Member& self, const hmc::Device& device, std::size_t bytes,
             const std::string& only) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t block = std::max<std::size_t>(4, bytes / ranks / 4 * 4), whole = block * ranks;
  const hmc::Memory in = check(hmc::Memory::allocate(whole, device)), out = check(hmc::Memory::allocate(whole, device));
  const hmc::MemoryView from(in.data(), whole, device), to(out.data(), whole, device);
  const hmc::MemoryView part_from(in.data(), block, device), part_to(out.data(), block, device);
  const hmc::Reduction sum{.type = hmc::DataType::f32, .op = hmc::ReduceOp::sum};
  const std::vector<std::pair<std::string, Post>> operations{
      {"all_reduce", [&] { return self.iall_reduce(to, from, sum); }},
      {"reduce_scatter", [&] { return self.ireduce_scatter(part_to, from, sum); }},
      {"all_gather", [&] { return self.iall_gather(to, part_from); }},
      {"broadcast", [&] { return self.ibroadcast(to, 0); }},
      {"all_to_all", [&] { return self.iall_to_all(to, from); }},
  };
  const std::size_t calls = std::clamp<std::size_t>((std::size_t{256} << 20) / whole, 4, 200);
  for (const auto& [name, post] : operations) {
    if (!only.empty() && only != name) continue;
    const double alone = seconds_per_call(comm, post, calls, false), row = seconds_per_call(comm, post, calls, true);
    if (self.rank() != 0) continue;
    std::printf("{\"operation\": \"%s\", \"ranks\": %zu, \"bytes\": %zu, \"alone\": %.9f, \"in_a_row\": %.9f}\n", name.c_str(),
                ranks, whole, alone, row);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string prefix = argc > 1 ? argv[1] : "cuda:";
  const std::size_t largest = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::size_t{256} << 20;
  const std::string only = argc > 3 ? argv[3] : "";
  const std::size_t smallest = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;
  const char* const number = std::getenv("HMC_RANK");
  hmc::InitOptions options;
  options.devices = {check(hmc::Device::parse(prefix == "cpu" ? prefix : prefix + (number == nullptr ? "0" : number)))};
  const hmc::Communicator comm = check(hmc::Communicator::init(options));
  const hmc::Member self = check(comm.self());
  for (const std::size_t bytes :
       {std::size_t{8}, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{256} << 20}) {
    if (bytes >= smallest && bytes <= largest) measure(comm, self, options.devices.front(), bytes, only);
  }
  return 0;
}
