// Completions in an event loop: many operations under way, one file descriptor to wait on.
#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

int main() {
  return example::run_processes(2, [](const hmc::InitOptions& options) {
    const hmc::Communicator comm = must(hmc::Communicator::init(options));
    const hmc::Member me = must(comm.self());
    const int other = 1 - me.rank();

    constexpr std::size_t messages = 32, bytes = 50'000;
    std::vector<std::vector<std::uint8_t>> out(messages), in(messages, std::vector<std::uint8_t>(bytes));
    const hmc::CompletionQueue queue = must(hmc::CompletionQueue::create());
    for (std::size_t i = 0; i < messages; ++i) {
      out[i].assign(bytes, static_cast<std::uint8_t>(i * 3 + static_cast<std::size_t>(me.rank())));
      // Even tokens: receives; odd ones: sends.
      queue.watch(must(me.irecv({in[i].data(), bytes}, other, static_cast<std::int64_t>(i))), 2 * i);
      queue.watch(must(me.isend({out[i].data(), bytes}, other, static_cast<std::int64_t>(i))), 2 * i + 1);
    }

    const int loop = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    expect(epoll_ctl(loop, EPOLL_CTL_ADD, queue.fd(), &event) == 0, "epoll");
    for (std::size_t left = 2 * messages; left > 0;) {
      std::array<epoll_event, 1> ready{};
      expect(epoll_wait(loop, ready.data(), 1, 30'000) == 1, "completions before the deadline");
      for (const std::uint64_t token : queue.drain()) {
        --left;
        if (token % 2 != 0) continue;
        for (const std::uint8_t byte : in[token / 2])
          expect(byte == static_cast<std::uint8_t>(token / 2 * 3 + static_cast<std::size_t>(other)), "a byte");
      }
    }
    close(loop);
    std::printf("rank %d: %zu completions\n", me.rank(), 2 * messages);
    must(comm.barrier());
  });
}
