// HMC between two processes that use an RDMA device each, measured as perftest does it: many puts under way at once, one queue
// pair. Prints one JSON object per point: {"operation": ..., "bytes": ..., "seconds": of one, "calls": system calls that write, of
// one}. Usage: hmc_rdma_perf NEAR_DEVICE FAR_DEVICE [repeat]; bench/rdma.py compares it with perftest.
#include <hmc/hmc.h>
#include <sys/resource.h>
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

constexpr std::size_t room = 32U << 20;
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

// How often its threads have waited for something in the kernel.
double sleeps() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_nvcsw);
}

// Medians over samples of `count` operations each.
class Samples {
 public:
  template <class Call>
  void take(int count, const Call& call) {
    const double calls = writing_calls(), slept = sleeps();
    const auto start = bench::Clock::now();
    call();
    seconds_.push_back(bench::seconds_since(start) / count);
    sleeps_.push_back((sleeps() - slept) / count);
    calls_.push_back((writing_calls() - calls) / count);
  }
  void report(const char* operation, std::size_t bytes) const {
    std::printf("{\"operation\": \"%s\", \"bytes\": %zu, \"seconds\": %.9g, \"calls\": %.3g, \"sleeps\": %.3g}\n", operation, bytes,
                bench::median(seconds_), bench::median(calls_), bench::median(sleeps_));
    std::fflush(stdout);
  }

 private:
  std::vector<double> seconds_, calls_, sleeps_;
};

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
    short_source_ = check(buffer_.slice(room - 8, 8));
    short_target_ = check(remote_.slice(room - 64, 8));
  }

  void run(const std::string& operations) {
    const auto wanted = [&](const char* name) { return operations.find(name) != std::string::npos; };
    for (std::size_t size = 4096; wanted("put") && size <= 4U << 20; size *= 4) put_bandwidth(size);
    if (wanted("blocks")) blocks(4096);
    if (wanted("latency")) latency();
    if (wanted("behind")) behind_puts();
    check(comm_.barrier());
    check(comm_.close());
  }

 private:
  // `count` calls of side 0, the other side asleep but for what comes in.
  template <class Call>
  void measure(const char* operation, std::size_t bytes, int count, const Call& call) {
    check(comm_.barrier());
    if (side_ == 1) return check(self_.wait_notify(0, 9));
    call(count);
    Samples samples;
    for (int i = 0; i < repeat_; ++i) samples.take(count, [&] { call(count); });
    samples.report(operation, bytes);
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

  // Eight bytes and a notification there, the same back.
  void exchange() {
    hmc::PutOptions options;
    options.notify = hmc::Notify(1);
    const auto put = [&] { static_cast<void>(check(self_.put(short_source_, short_target_, options))); };
    if (side_ == 0) put();
    check(self_.wait_notify(1 - side_, 1));
    if (side_ == 1) put();
  }

  void latency() {
    constexpr int rounds = 500;
    Samples samples;
    for (int sample = 0; sample <= repeat_; ++sample) {
      check(comm_.barrier());
      const auto exchanges = [&] {
        for (int i = 0; i < rounds; ++i) exchange();
      };
      if (sample == 0) {
        exchanges();
      } else {
        samples.take(2 * rounds, exchanges);
      }
    }
    if (side_ == 0) samples.report("put+notify", 8);
  }

  // Eight bytes there and back as messages.
  void message_exchange() {
    const int other = 1 - side_;
    if (side_ == 0) check(self_.send(short_source_, other));
    check(self_.recv(short_source_, other));
    if (side_ == 1) check(self_.send(short_source_, other));
  }

  // Messages that begin while side 0 has long puts under way: the way there is behind them, the way back is not.
  void behind_puts() {
    constexpr std::size_t puts = 8, size = 16U << 20;
    constexpr int rounds = 8;
    Samples alone, behind;
    for (int sample = 0; sample < repeat_; ++sample) {
      check(comm_.barrier());
      for (int i = 0; i < rounds; ++i) alone.take(1, [&] { message_exchange(); });
      check(comm_.barrier());
      std::vector<hmc::Work> works;
      for (std::size_t i = 0; side_ == 0 && i < puts; ++i)
        works.push_back(check(self_.put(check(buffer_.slice(0, size)), check(remote_.slice(0, size)))));
      for (int i = 0; i < rounds; ++i) behind.take(1, [&] { message_exchange(); });
      if (side_ == 0 && works.back().done()) std::fprintf(stderr, "the puts were over before the messages\n");
      for (const hmc::Work& work : works) check(work.wait());
    }
    if (side_ == 1) return;
    alone.report("messages alone", 8);
    behind.report("messages behind puts", 8);
  }

  int side_;
  int repeat_;
  hmc::Communicator comm_;
  hmc::Member self_;
  hmc::ConnBuffer buffer_;
  hmc::RemoteBuffer remote_;
  hmc::ConnBuffer short_source_;
  hmc::RemoteBuffer short_target_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: hmc_rdma_perf NEAR_DEVICE FAR_DEVICE [repeat [operations]]\n");
    return 2;
  }
  const int repeat = argc > 3 ? std::atoi(argv[3]) : 5;
  const std::string rendezvous = "unix:/tmp/hmc-rdma-perf-" + std::to_string(getpid());
  const pid_t child = bench::fork_partner();
  const int side = child == 0 ? 1 : 0;
  setenv("HMC_NICS", argv[1 + side], 1);
  Benchmark(side, repeat, rendezvous).run(argc > 4 ? argv[4] : "put,blocks,latency,behind");
  if (side == 1) return 0;
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
