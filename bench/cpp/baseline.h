// What HMC is measured against: plain C++ doing the same with nothing in between. Two processes call the same function, with
// `side` 0 and 1, over shared anonymous memory made before they forked.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Memory shared by the two processes: flags a cache line apart, and a barrier.
struct Shared {
  alignas(64) std::atomic<std::uint64_t> flag[2];
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<int> port;
};
Shared* make_shared();
// fork(); the child, which may spin on a flag, ends with its parent.
pid_t fork_partner();
void barrier(Shared& shared, unsigned& generation);

void pin_to_core(int core);
double median(std::vector<double> samples);
// Calls per sample for an operation of `bytes`: about 64 MiB moved, so that both sides of a transfer agree on the number.
int calls_for(std::size_t bytes);
// Seconds per call: the median of `repeat` samples of `calls` calls, after one sample to warm up.
double time_calls(int repeat, int calls, const std::function<void()>& call);

double flag_half_round_trip(Shared& shared, int side, int iterations);
// One thread, `bytes` from source to target. Seconds.
double memcpy_seconds(std::size_t bytes, int repeat);
// The pattern of the block benchmark: `count` blocks, scattered on both sides, by memcpy.
double memcpy_blocks_seconds(std::size_t count, std::size_t block, int repeat);

// TCP over loopback whose ends spin on non-blocking sockets and send slices of 256 KiB on `streams` connections.
class RawTcp {
 public:
  RawTcp(Shared& shared, int side, int streams);
  ~RawTcp();
  RawTcp(const RawTcp&) = delete;
  RawTcp& operator=(const RawTcp&) = delete;
  double half_round_trip(int iterations);          // seconds, 8 bytes
  double transfer(std::size_t bytes, int repeat);  // side 0 sends, side 1 receives and answers with one byte; seconds

 private:
  int side_;
  std::vector<int> sockets_;
};

}  // namespace bench
