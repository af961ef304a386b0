// Tokens to experts: every rank sends every other a different number of bytes, and learns the numbers first.
#include <cstdint>
#include <numeric>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

int main() {
  return example::run_processes(4, [](const hmc::InitOptions& options) {
    const hmc::Communicator comm = must(hmc::Communicator::init(options));
    const hmc::Member me = must(comm.self());
    const auto size = static_cast<std::size_t>(me.size()), rank = static_cast<std::size_t>(me.rank());

    // How many bytes go from here to each expert; none to some.
    std::vector<std::uint64_t> sends(size), receives(size);
    for (std::size_t to = 0; to < size; ++to) sends[to] = (rank + to) % 3 * 1000;

    // Equal blocks: block r of the input goes to rank r, block r of the output comes from rank r.
    const std::size_t bytes = size * sizeof(std::uint64_t);
    must(me.all_to_all({receives.data(), bytes}, {sends.data(), bytes}));

    std::vector<std::uint64_t> send_at(size), receive_at(size);
    std::exclusive_scan(sends.begin(), sends.end(), send_at.begin(), std::uint64_t{0});
    std::exclusive_scan(receives.begin(), receives.end(), receive_at.begin(), std::uint64_t{0});
    std::vector<std::uint8_t> tokens(send_at.back() + sends.back()), routed(receive_at.back() + receives.back());
    for (std::size_t to = 0; to < size; ++to) {
      for (std::size_t i = 0; i < sends[to]; ++i) tokens[send_at[to] + i] = static_cast<std::uint8_t>(rank * 50 + to * 10 + i);
    }

    // Uneven blocks. This one runs in the background; something else could be computed meanwhile.
    const hmc::Work work = must(
        me.iall_to_all_v({routed.data(), routed.size()}, {receives, receive_at}, {tokens.data(), tokens.size()}, {sends, send_at}));
    must(work.wait(hmc::Deadline::after_seconds(30)));
    for (std::size_t from = 0; from < size; ++from) {
      for (std::size_t i = 0; i < receives[from]; ++i) {
        expect(routed[receive_at[from] + i] == static_cast<std::uint8_t>(from * 50 + rank * 10 + i), "a routed token");
      }
    }
    std::printf("rank %d: %zu bytes in, %zu out\n", me.rank(), routed.size(), tokens.size());
    must(comm.barrier());
  });
}
