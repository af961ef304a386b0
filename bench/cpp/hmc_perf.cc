// HMC between two processes, a core each, and the raw baselines in the same run. Prints one JSON object per measured point:
// {"operation": ..., "transport": ..., "bytes": ..., "seconds": ...}. Usage: hmc_perf [transports] [repeat] [largest bytes]
#include <hmc/hmc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "baseline.h"
#include "check.h"

namespace {

using bench::check;

class Benchmark {
 public:
  Benchmark(bench::Shared& shared, int side, std::string transports, int repeat, std::size_t largest, const std::string& rendezvous)
      : shared_(shared), side_(side), transports_(std::move(transports)), repeat_(repeat), largest_(largest) {
    hmc::InitOptions options;
    options.rank = side;
    options.size = 2;
    options.rendezvous = rendezvous;
    options.context.transports = transports_;
    comm_ = check(hmc::Communicator::init(options));
    self_ = check(comm_.self());
  }

  void run() {
    baselines();
    latency();
    put_bandwidth();
    send_bandwidth();
    blocks();
    all_to_all();
    check(comm_.barrier());
    check(comm_.close());
  }

 private:
  [[nodiscard]] int other() const { return 1 - side_; }
  void meet() { bench::barrier(shared_, generation_); }
  void report(const char* operation, std::size_t bytes, double seconds) const {
    if (side_ != 0) return;
    std::printf("{\"operation\": \"%s\", \"transport\": \"%s\", \"bytes\": %zu, \"seconds\": %.9g}\n", operation,
                transports_.empty() ? "auto" : transports_.c_str(), bytes, seconds);
    std::fflush(stdout);
  }
  [[nodiscard]] std::vector<std::size_t> sizes(std::size_t smallest) const {
    std::vector<std::size_t> all;
    for (std::size_t size = smallest; size <= largest_; size *= 4) all.push_back(size);
    return all;
  }

  void baselines() {
    meet();
    report("raw flag", 8, bench::flag_half_round_trip(shared_, side_, 200'000));
    meet();
    if (side_ == 0) {
      for (const std::size_t size : sizes(64 << 10)) report("memcpy", size, bench::memcpy_seconds(size, repeat_));
      report("memcpy blocks", 4096 * 16384, bench::memcpy_blocks_seconds(4096, 16384, repeat_));
    }
    meet();
    for (const int streams : {1, 2}) {
      bench::RawTcp tcp(shared_, side_, streams);
      const std::string name = "raw tcp " + std::to_string(streams);
      if (streams == 1) report("raw tcp latency", 8, tcp.half_round_trip(5000));
      for (const std::size_t size : sizes(64 << 10)) report(name.c_str(), size, tcp.transfer(size, repeat_));
      meet();
    }
  }

  void latency() {
    constexpr int rounds = 20'000;
    std::vector<char> message(8);
    const hmc::MemoryView view(message.data(), message.size());
    std::vector<double> samples;
    for (int sample = 0; sample <= repeat_; ++sample) {
      meet();
      const auto start = bench::Clock::now();
      for (int i = 0; i < rounds; ++i) {
        if (side_ == 0) check(self_.send(view, 1));
        check(self_.recv(view, other()).status());
        if (side_ == 1) check(self_.send(view, 0));
      }
      if (sample > 0) samples.push_back(bench::seconds_since(start) / rounds / 2);
    }
    report("send/recv", 8, bench::median(samples));

    const hmc::ConnBuffer buffer = check(comm_.buffer(4096));
    const auto remotes = check(self_.exchange(buffer));
    const hmc::ConnBuffer source = check(buffer.slice(0, 8));
    const hmc::RemoteBuffer target = check(remotes[static_cast<std::size_t>(other())].slice(64, 8));
    hmc::PutOptions options;
    options.notify = hmc::Notify(1);
    samples.clear();
    for (int sample = 0; sample <= repeat_; ++sample) {
      meet();
      const auto start = bench::Clock::now();
      for (int i = 0; i < rounds; ++i) {
        if (side_ == 0) static_cast<void>(check(self_.put(source, target, options)));
        check(self_.wait_notify(other(), 1));
        if (side_ == 1) static_cast<void>(check(self_.put(source, target, options)));
      }
      if (sample > 0) samples.push_back(bench::seconds_since(start) / rounds / 2);
    }
    report("put+notify", 8, bench::median(samples));
    meet();
  }

  void put_bandwidth() {
    const hmc::ConnBuffer buffer = check(comm_.buffer(largest_));
    std::fill_n(static_cast<char*>(buffer.memory().data()), largest_, static_cast<char>(side_ + 1));
    const auto remotes = check(self_.exchange(buffer));
    const hmc::RemoteBuffer& remote = remotes[static_cast<std::size_t>(other())];
    meet();
    if (side_ == 0) {
      const auto start = bench::Clock::now();
      check(check(self_.put(buffer, remote)).wait());
      report("put first", largest_, bench::seconds_since(start));
    }
    for (const std::size_t size : sizes(64 << 10)) {
      meet();
      if (side_ != 0) {
        check(self_.wait_notify(0, 9));
        continue;
      }
      const hmc::ConnBuffer source = check(buffer.slice(0, size));
      const hmc::RemoteBuffer target = check(remote.slice(0, size));
      report("put", size,
             bench::time_calls(repeat_, bench::calls_for(size), [&] { check(check(self_.put(source, target)).wait()); }));
      report("get", size,
             bench::time_calls(repeat_, bench::calls_for(size), [&] { check(check(self_.get(source, target)).wait()); }));
      check(self_.notify(1, hmc::Notify(9)));
    }
    meet();
  }

  void send_bandwidth() {
    std::vector<char> memory(largest_, static_cast<char>(side_));
    for (const std::size_t size : sizes(64 << 10)) {
      meet();
      const hmc::MemoryView view(memory.data(), size);
      const double seconds = bench::time_calls(repeat_, bench::calls_for(size), [&] {
        // A ping and a pong, so that one side's early return does not count as speed.
        if (side_ == 0) check(self_.send(view, 1));
        check(self_.recv(view, other()).status());
        if (side_ == 1) check(self_.send(view, 0));
      });
      report("send", size, seconds / 2);
    }
    meet();
  }

  void blocks() {
    for (const auto& [count, block] : {std::pair<std::size_t, std::size_t>{4096, 16384}, {16384, 4096}}) {
      const std::size_t pool = 2 * count * block;
      const hmc::ConnBuffer buffer = check(comm_.buffer(pool));
      std::fill_n(static_cast<char*>(buffer.memory().data()), pool, static_cast<char>(side_ + 1));
      const auto remotes = check(self_.exchange(buffer));
      std::vector<std::uint64_t> from(2 * count);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = i * block;
      std::vector<std::uint64_t> to = from;
      std::mt19937 random(7);
      std::shuffle(from.begin(), from.end(), random);
      std::shuffle(to.begin(), to.end(), random);
      from.resize(count);
      to.resize(count);
      meet();
      if (side_ == 0) {
        const double seconds = bench::time_calls(repeat_, 1, [&, block = block] {
          const hmc::BlockPair pair{buffer, remotes[1], from, to};
          check(check(self_.put_blocks(check(self_.prepare_blocks({&pair, 1}, block)))).wait());
        });
        report(block == 16384 ? "put blocks 16K" : "put blocks 4K", count * block, seconds);
      }
      meet();
    }
  }

  void all_to_all() {
    for (std::size_t size = 64; size <= std::min<std::size_t>(largest_, 64U << 20); size *= 16) {
      std::vector<char> in(2 * size, static_cast<char>(side_));
      std::vector<char> out(2 * size);
      meet();
      const double seconds = bench::time_calls(repeat_, bench::calls_for(size),
                                               [&] { check(self_.all_to_all({out.data(), out.size()}, {in.data(), in.size()})); });
      report("all_to_all", size, seconds);
    }
    meet();
  }

  bench::Shared& shared_;
  int side_;
  std::string transports_;
  int repeat_;
  std::size_t largest_;
  unsigned generation_ = 0;
  hmc::Communicator comm_;
  hmc::Member self_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string transports = argc > 1 ? argv[1] : "";
  const int repeat = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::size_t largest = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : std::size_t{256} << 20;
  bench::Shared* shared = bench::make_shared();
  const std::string rendezvous = "unix:/tmp/hmc-perf-" + std::to_string(getpid());
  const pid_t child = bench::fork_partner();
  const int side = child == 0 ? 1 : 0;
  bench::pin_to_core(side);
  Benchmark(*shared, side, transports, repeat, largest, rendezvous).run();
  if (side == 1) return 0;
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
