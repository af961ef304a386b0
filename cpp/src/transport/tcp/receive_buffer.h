// ReceiveBuffer: what a socket has brought and nothing has used yet. Reads go straight to where a payload belongs, and only past it
// into the buffer.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hmc::tcp {

inline constexpr std::size_t max_vectors = 520;  // pieces of one read or write; IOV_MAX is 1024

enum class Io : std::uint8_t { moved, blocked, failed };

class ReceiveBuffer {
 public:
  // Without targets the buffer must have room. Reads into `targets` and, when these are all of the `expected` payload, on into the
  // buffer. `bytes` in all; 0 with `moved`: the peer closed. `failed`: errno says why.
  Io receive(int fd, std::span<const iovec> targets, std::size_t expected, std::size_t& bytes);

  [[nodiscard]] std::span<std::byte> unread() noexcept { return {bytes_.data() + begin_, end_ - begin_}; }
  void consume(std::size_t bytes) noexcept { begin_ += bytes; }
  // Makes room for `bytes` of one frame.
  void make_room(std::size_t bytes);

 private:
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace hmc::tcp
