// UniqueFd: owner of one descriptor. Every live one is known to the fork handler, which closes them in the child: there an owner
// made before the fork owns nothing, and its number may be another descriptor's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace hmc {

class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept;  // takes ownership; -1 for none
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), epoch_(other.epoch_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      epoch_ = other.epoch_;
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept;  // the fork handler forgets it too; -1 for one that the handler has closed
  void reset() noexcept;
  [[nodiscard]] UniqueFd duplicate() const noexcept;  // close-on-exec; empty on failure (errno says why)

 private:
  [[nodiscard]] bool is_open() const noexcept;

  int fd_ = -1;
  std::uint32_t epoch_ = 0;  // fork_epoch() when it was made
};

// Whether a live owner has that descriptor. Any thread.
[[nodiscard]] bool is_owned(int fd) noexcept;

// Anonymous shared memory, close-on-exec and sealable, with the MFD_* `flags` besides; empty on failure (errno says why).
[[nodiscard]] UniqueFd make_memfd(const char* name, unsigned flags = 0) noexcept;
// Allocates the pages of [offset, offset + bytes) of such a file, also beside signals. 0, or errno: some may be allocated then.
[[nodiscard]] int allocate_pages(int fd, std::size_t offset, std::size_t bytes) noexcept;
// Whether this errno of make_memfd() refuses shared memory as such (a security profile does), rather than more of it.
[[nodiscard]] bool refuses_shared_memory(std::int64_t error) noexcept;

}  // namespace hmc
