// The raw baseline of `hmc bench`: a flag in memory that both processes map, with nothing of HMC in between.
#include <atomic>
#include <chrono>

#include "common.h"

namespace hmc::bindings {
namespace {

// Half a round trip over two flags a cache line apart in `memory`, which both processes have mapped. Seconds.
double flag_half_round_trip(void* memory, int side, int iterations) {
  auto* flags = static_cast<std::atomic<std::uint64_t>*>(memory);
  std::atomic<std::uint64_t>& ping = flags[0];
  std::atomic<std::uint64_t>& pong = flags[8];
  const auto start = std::chrono::steady_clock::now();
  for (int i = 1; i <= iterations; ++i) {
    const auto turn = static_cast<std::uint64_t>(i);
    std::atomic<std::uint64_t>& mine = side == 0 ? ping : pong;
    std::atomic<std::uint64_t>& theirs = side == 0 ? pong : ping;
    if (side == 0) mine.store(turn, std::memory_order_release);
    while (theirs.load(std::memory_order_acquire) != turn) __builtin_ia32_pause();
    if (side == 1) mine.store(turn, std::memory_order_release);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / iterations / 2;
}

}  // namespace

void bind_baseline(py::module_& module) {
  module.def(
      "baseline_flag",
      [](const py::object& shared, int side, int iterations) {
        const MemoryView view = view_of(shared, true);
        if (view.bytes < 128) refuse("the flags need 128 bytes");
        const ReleasedGil nogil;
        return flag_half_round_trip(view.data, side, iterations);
      },
      py::arg("shared"), py::arg("side"), py::arg("iterations"),
      "Seconds for half a round trip over a raw flag in memory that two processes share (an mmap of one file). For hmc bench.");
}

}  // namespace hmc::bindings
