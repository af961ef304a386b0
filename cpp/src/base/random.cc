#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstddef>

namespace hmc {

void random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = getrandom(out.data(), out.size(), 0);
    if (n < 0) {
      if (errno == EINTR) continue;
      return;  // cannot happen after boot with a valid buffer
    }
    out = out.subspan(static_cast<std::size_t>(n));
  }
}

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  random_bytes(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace hmc
