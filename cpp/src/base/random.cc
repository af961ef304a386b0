#include "base/random.h"

#include <string.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/fork.h"

namespace hmc {
namespace {

void ask_kernel(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = getrandom(out.data(), out.size(), 0);
    if (n < 0) {
      if (errno == EINTR) continue;
      std::perror("hmc: getrandom");  // a sandbox forbids it, and keys and tickets must not be guessable
      std::abort();
    }
    out = out.subspan(static_cast<std::size_t>(n));
  }
}

// A system call for many small requests: it costs as much as the rest of a registration. A forked child starts with none of its
// parent's.
class Pool {
 public:
  void take(std::span<std::byte> out) {
    if (left_ < out.size() || epoch_ != fork_epoch()) refill();
    const auto taken = std::span(bytes_).subspan(bytes_.size() - left_, out.size());
    std::ranges::copy(taken, out.begin());
    explicit_bzero(taken.data(), taken.size());
    left_ -= out.size();
  }

 private:
  void refill() {
    install_fork_handler();
    epoch_ = fork_epoch();
    ask_kernel(bytes_);
    left_ = bytes_.size();
  }

  std::array<std::byte, 512> bytes_;
  std::size_t left_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace

void random_bytes(std::span<std::byte> out) {
  constexpr std::size_t small = 16;
  thread_local Pool pool;
  if (out.size() > small) return ask_kernel(out);
  pool.take(out);
}

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  random_bytes(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace hmc
