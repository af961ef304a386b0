#include "baseline.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>

namespace bench {
namespace {

void relax() { __builtin_ia32_pause(); }

// Sends or receives all of it, spinning. Only for a benchmark whose peer is known to be alive.
template <class Call>
void spin_all(Call call, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = call(done, bytes - done);
    if (n > 0) done += static_cast<std::size_t>(n);
  }
}

}  // namespace

Shared* make_shared() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Shared{};
}

pid_t fork_partner() {
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return child;
}

void barrier(Shared& shared, unsigned& generation) {
  shared.arrived.fetch_add(1);
  ++generation;
  while (shared.arrived.load() < 2 * generation) sched_yield();
}

void pin_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  sched_setaffinity(0, sizeof set, &set);
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

int calls_for(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>((64U << 20) / std::max<std::size_t>(bytes, 1), 1, 500));
}

double time_calls(int repeat, int calls, const std::function<void()>& call) {
  std::vector<double> samples;
  for (int i = 0; i <= repeat; ++i) {
    const auto start = Clock::now();
    for (int k = 0; k < calls; ++k) call();
    if (i > 0) samples.push_back(seconds_since(start) / calls);
  }
  return median(samples);
}

double flag_half_round_trip(Shared& shared, int side, int iterations) {
  const auto start = Clock::now();
  for (int i = 1; i <= iterations; ++i) {
    const auto turn = static_cast<std::uint64_t>(i);
    if (side == 0) {
      shared.flag[0].store(turn, std::memory_order_release);
      while (shared.flag[1].load(std::memory_order_acquire) != turn) relax();
    } else {
      while (shared.flag[0].load(std::memory_order_acquire) != turn) relax();
      shared.flag[1].store(turn, std::memory_order_release);
    }
  }
  const double result = seconds_since(start) / iterations / 2;
  shared.flag[static_cast<std::size_t>(side)].store(0);
  return result;
}

double memcpy_seconds(std::size_t bytes, int repeat) {
  std::vector<char> source(bytes, 1);
  std::vector<char> target(bytes, 2);
  return time_calls(repeat, calls_for(bytes), [&] {
    std::memcpy(target.data(), source.data(), bytes);
    asm volatile("" : : "r"(target.data()) : "memory");
  });
}

double memcpy_blocks_seconds(std::size_t count, std::size_t block, int repeat) {
  std::vector<char> source(2 * count * block, 1);
  std::vector<char> target(2 * count * block, 2);
  std::vector<std::size_t> from(2 * count);
  std::iota(from.begin(), from.end(), 0);
  std::vector<std::size_t> to = from;
  std::mt19937 random(7);
  std::shuffle(from.begin(), from.end(), random);
  std::shuffle(to.begin(), to.end(), random);
  return time_calls(repeat, 1, [&] {
    for (std::size_t i = 0; i < count; ++i) std::memcpy(&target[to[i] * block], &source[from[i] * block], block);
    asm volatile("" : : "r"(target.data()) : "memory");
  });
}

RawTcp::RawTcp(Shared& shared, int side, int streams) : side_(side) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int listener = -1;
  if (side == 0) {
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(listener, 64);
    socklen_t size = sizeof address;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    shared.port.store(ntohs(address.sin_port));
  } else {
    while (shared.port.load() == 0) sched_yield();
    address.sin_port = htons(static_cast<std::uint16_t>(shared.port.load()));
  }
  for (int i = 0; i < streams; ++i) {
    int fd = -1;
    if (side == 0) {
      fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    } else {
      fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    sockets_.push_back(fd);
  }
  if (listener >= 0) {
    close(listener);
    shared.port.store(0);
  }
}

RawTcp::~RawTcp() {
  for (const int fd : sockets_) close(fd);
}

double RawTcp::half_round_trip(int iterations) {
  char message[8] = {};
  const int fd = sockets_[0];
  const auto send_it = [&] { spin_all([&](std::size_t at, std::size_t n) { return send(fd, message + at, n, MSG_NOSIGNAL); }, 8); };
  const auto receive_it = [&] { spin_all([&](std::size_t at, std::size_t n) { return recv(fd, message + at, n, 0); }, 8); };
  const auto start = Clock::now();
  for (int i = 0; i < iterations; ++i) {
    if (side_ == 0) send_it();
    receive_it();
    if (side_ == 1) send_it();
  }
  return seconds_since(start) / iterations / 2;
}

double RawTcp::transfer(std::size_t bytes, int repeat) {
  constexpr std::size_t slice = 256 << 10;
  std::vector<char> memory(bytes, 3);
  const std::size_t streams = sockets_.size();
  return time_calls(repeat, calls_for(bytes), [&] {
    // Slice k travels on stream k % streams; every stream has its own place in the transfer.
    std::vector<std::size_t> next(streams);
    std::vector<std::size_t> within(streams, 0);
    for (std::size_t s = 0; s < streams; ++s) next[s] = s * slice;
    for (std::size_t left = bytes; left > 0;) {
      for (std::size_t s = 0; s < streams; ++s) {
        if (next[s] >= bytes) continue;
        const std::size_t size = std::min(slice, bytes - next[s]);
        char* at = memory.data() + next[s] + within[s];
        const ssize_t n =
            side_ == 0 ? send(sockets_[s], at, size - within[s], MSG_NOSIGNAL) : recv(sockets_[s], at, size - within[s], 0);
        if (n <= 0) continue;
        left -= static_cast<std::size_t>(n);
        within[s] += static_cast<std::size_t>(n);
        if (within[s] == size) {
          within[s] = 0;
          next[s] += streams * slice;
        }
      }
    }
    char answer = 1;
    if (side_ == 1) {
      spin_all([&](std::size_t, std::size_t n) { return send(sockets_[0], &answer, n, MSG_NOSIGNAL); }, 1);
    } else {
      spin_all([&](std::size_t, std::size_t n) { return recv(sockets_[0], &answer, n, 0); }, 1);
    }
  });
}

}  // namespace bench
