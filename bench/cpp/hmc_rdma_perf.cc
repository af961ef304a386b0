// HMC between two processes that use an RDMA device each, measured as perftest does it: many puts under way at once, one queue
// pair. Prints one JSON object per point: {"operation": ..., "bytes": ..., "seconds": of one, "calls": system calls that write, of
// one}. Usage: hmc_rdma_perf NEAR_DEVICE FAR_DEVICE [repeat]; bench/rdma.py compares it with perftest.
#include <hmc/hmc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "baseline.h"
#include "check.h"

namespace {

constexpr std::size_t room = 16U << 20;
constexpr std::size_t under_way = 128;  // puts, as many as ib_write_bw has

using bench::check;

// Of this process: a queue pair of Soft-RoCE is rung by one.
double writing_calls() {
  double calls = 0;
  if (std::FILE* file = std::fopen("/proc/self/io", "r"); file != nullptr) {
    char line[80];
    while (std::fgets(line, sizeof line, file) != nullptr) std::sscanf(line, "syscw: %lf", &calls);
    std::fclose(file);
  }
  return calls;
}

class Benchmark {
 public:
  Benchmark(int side, int repeat, const std::string& rendezvous) : side_(side), repeat_(repeat) {
    hmc::InitOptions options;
    options.rank = side;
    options.size = 2;
    options.rendezvous = rendezvous;
    options.context.transports = "verbs";
    comm_ = check(hmc::Communicator::init(options));
    self_ = check(comm_.self());
    buffer_ = check(comm_.buffer(room));
    remote_ = check(self_.exchange(buffer_))[static_cast<std::size_t>(1 - side)];
  }

  void run() {
    for (std::size_t size = 4096; size <= 4U << 20; size *= 4) put_bandwidth(size);
    blocks(4096);
    latency();
    check(comm_.barrier());
    check(comm_.close());
  }

 private:
  void report(const char* operation, std::size_t bytes, double seconds, double calls) const {
    std::printf("{\"operation\": \"%s\", \"bytes\": %zu, \"seconds\": %.9g, \"calls\": %.3g}\n", operation, bytes, seconds, calls);
    std::fflush(stdout);
  }

  // `count` calls of side 0, the other side asleep but for what comes in.
  template <class Call>
  void measure(const char* operation, std::size_t bytes, int count, const Call& call) {
    check(comm_.barrier());
    if (side_ == 1) return check(self_.wait_notify(0, 9));
    call(count);
    std::vector<double> samples, calls;
    for (int i = 0; i < repeat_; ++i) {
      const double before = writing_calls();
      const auto start = bench::Clock::now();
      call(count);
      samples.push_back(bench::seconds_since(start) / count);
      calls.push_back((writing_calls() - before) / count);
    }
    report(operation, bytes, bench::median(samples), bench::median(calls));
    check(self_.notify(1, hmc::Notify(9)));
  }

  void put_bandwidth(std::size_t size) {
    const hmc::ConnBuffer source = check(buffer_.slice(0, size));
    const hmc::RemoteBuffer target = check(remote_.slice(0, size));
    const auto count = static_cast<int>(std::clamp<std::size_t>((16U << 20) / size, 8, 1000));
    measure("put", size, count, [&](int puts) {
      std::deque<hmc::Work> works;
      for (int i = 0; i < puts; ++i) {
        if (works.size() == under_way) {
          check(works.front().wait());
          works.pop_front();
        }
        works.push_back(check(self_.put(source, target)));
      }
      for (const hmc::Work& work : works) check(work.wait());
    });
  }

  // Scattered at both ends, against as many bytes in one piece.
  void blocks(std::size_t block) {
    const std::size_t count = room / block / 2;
    std::vector<std::uint64_t> from(2 * count);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = i * block;
    std::vector<std::uint64_t> to = from;
    std::mt19937 random(7);
    std::shuffle(from.begin(), from.end(), random);
    std::shuffle(to.begin(), to.end(), random);
    from.resize(count);
    to.resize(count);
    const hmc::BlockPair pair{buffer_, remote_, from, to};
    const hmc::BlockBatch batch = check(self_.prepare_blocks({&pair, 1}, block));
    measure("put blocks", count * block, 2, [&](int times) {
      for (int i = 0; i < times; ++i) check(check(self_.put_blocks(batch)).wait());
    });
    const hmc::ConnBuffer source = check(buffer_.slice(0, count * block));
    const hmc::RemoteBuffer target = check(remote_.slice(0, count * block));
    measure("put whole", count * block, 2, [&](int times) {
      for (int i = 0; i < times; ++i) check(check(self_.put(source, target)).wait());
    });
  }

  void latency() {
    const hmc::ConnBuffer source = check(buffer_.slice(0, 8));
    const hmc::RemoteBuffer target = check(remote_.slice(64, 8));
    hmc::PutOptions options;
    options.notify = hmc::Notify(1);
    constexpr int rounds = 500;
    std::vector<double> samples, calls;
    for (int sample = 0; sample <= repeat_; ++sample) {
      check(comm_.barrier());
      const double before = writing_calls();
      const auto start = bench::Clock::now();
      for (int i = 0; i < rounds; ++i) {
        if (side_ == 0) static_cast<void>(check(self_.put(source, target, options)));
        check(self_.wait_notify(1 - side_, 1));
        if (side_ == 1) static_cast<void>(check(self_.put(source, target, options)));
      }
      if (sample == 0) continue;
      samples.push_back(bench::seconds_since(start) / rounds / 2);
      calls.push_back((writing_calls() - before) / rounds);
    }
    if (side_ == 0) report("put+notify", 8, bench::median(samples), bench::median(calls));
  }

  int side_;
  int repeat_;
  hmc::Communicator comm_;
  hmc::Member self_;
  hmc::ConnBuffer buffer_;
  hmc::RemoteBuffer remote_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: hmc_rdma_perf NEAR_DEVICE FAR_DEVICE [repeat]\n");
    return 2;
  }
  const int repeat = argc > 3 ? std::atoi(argv[3]) : 5;
  const std::string rendezvous = "unix:/tmp/hmc-rdma-perf-" + std::to_string(getpid());
  const pid_t child = fork();
  const int side = child == 0 ? 1 : 0;
  setenv("HMC_NICS", argv[1 + side], 1);
  Benchmark(side, repeat, rendezvous).run();
  if (side == 1) return 0;
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
