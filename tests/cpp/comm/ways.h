// The ways in which bytes go between two Contexts of one host: each transport, and shm without ptrace (its shared ring).
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "support.h"

namespace hmc::testing {

inline std::vector<std::string> all_ways() {
  auto ways = peer_transports();
  for (const auto& name : peer_transports()) {
    if (name == "shm") ways.emplace_back("ring");
  }
  return ways;
}

// Contexts made while this lives take the way. Also the names of its transports and its environment for other processes.
class Way {
 public:
  explicit Way(const std::string& name) : ring_(name == "ring"), transports(ring_ ? "shm" : name) {
    if (ring_) setenv("HMC_SHM_PTRACE", "0", 1);
  }
  ~Way() {
    if (ring_) unsetenv("HMC_SHM_PTRACE");
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

 private:
  bool ring_;

 public:
  const std::string transports;
};

struct WayPair : Way, Pair {
  explicit WayPair(const std::string& name) : Way(name), Pair(transports) {}
};

// A receive buffer between guards: what may be written, and what must not be.
class Guarded {
 public:
  explicit Guarded(std::size_t size, std::uint64_t poison = 77) : poison_(poison), bytes_(size + 2 * guard) {
    fill_pattern(bytes_, poison_);
  }
  [[nodiscard]] std::span<std::byte> inner() { return std::span(bytes_).subspan(guard, bytes_.size() - 2 * guard); }
  [[nodiscard]] MemoryView view() { return {inner().data(), inner().size()}; }
  // Bytes [0, size) are of pattern `seed`, all others as they were.
  [[nodiscard]] bool holds(std::size_t size, std::uint64_t seed) const {
    std::vector<std::byte> expected(bytes_.size());
    fill_pattern(expected, poison_);
    fill_pattern(std::span(expected).subspan(guard, size), seed);
    return same_bytes(expected, bytes_);
  }
  [[nodiscard]] bool untouched() const { return holds(0, 0); }

 private:
  static constexpr std::size_t guard = 61;
  std::uint64_t poison_;
  std::vector<std::byte> bytes_;
};

}  // namespace hmc::testing
