// The raw baseline of `hmc bench`: a flag in memory that both processes map, with nothing of HMC in between.
#include <atomic>
#include <chrono>

#include "common.h"

namespace hmc::bindings {
namespace {

// Half a round trip over two flags a cache line apart in `memory`, which both processes have mapped. Seconds. At most `iterations`,
// and no more once `limit` seconds have passed at side 0: processes that share a core wait for each other's time slice each time.
double flag_half_round_trip(void* memory, int side, int iterations, double limit) {
  constexpr std::uint64_t last = std::uint64_t{1} << 63;  // beside the number of side 0's last turn
  constexpr int turns_per_look = 64;                      // at the clock
  auto* flags = static_cast<std::atomic<std::uint64_t>*>(memory);
  std::atomic<std::uint64_t>& ping = flags[0];
  std::atomic<std::uint64_t>& pong = flags[8];
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  int turns = 0;
  for (bool ends = false; !ends;) {
    const auto turn = static_cast<std::uint64_t>(++turns);
    if (side == 0) {
      ends = turns >= iterations || (turns % turns_per_look == 0 && elapsed() > limit);
      ping.store(ends ? turn | last : turn, std::memory_order_release);
      while (pong.load(std::memory_order_acquire) != turn) __builtin_ia32_pause();
    } else {
      std::uint64_t seen = 0;
      while (((seen = ping.load(std::memory_order_acquire)) & ~last) != turn) __builtin_ia32_pause();
      ends = (seen & last) != 0;
      pong.store(turn, std::memory_order_release);
    }
  }
  return elapsed() / turns / 2;
}

}  // namespace

void bind_baseline(py::module_& module) {
  module.def(
      "baseline_flag",
      [](const py::object& shared, int side, int iterations, double limit) {
        const MemoryView view = view_of(shared, true);
        if (view.bytes < 128) refuse("the flags need 128 bytes");
        const ReleasedGil nogil;
        return flag_half_round_trip(view.data, side, iterations, limit);
      },
      py::arg("shared"), py::arg("side"), py::arg("iterations"), py::arg("limit") = 0.5,
      "Seconds for half a round trip over a raw flag in memory that two processes share (an mmap of one file); at most that "
      "many, and no longer than about limit seconds. For hmc bench.");
}

}  // namespace hmc::bindings
