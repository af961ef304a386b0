// PathLock: one process at a time replaces what a path names.
#pragma once

#include <string>

#include "base/fd.h"
#include "hmc/status.h"

namespace hmc {

// Held from take() to the end of its life, by one holder of any process or thread. The lock is that of a file beside `path`, which
// is removed with it. The end of a process releases its lock. Holders do not block, so that others have it within milliseconds.
class PathLock {
 public:
  // Waits up to a second. Errors: timeout (the holder is stopped), and those of a file that cannot be made beside `path`.
  static Result<PathLock> take(const std::string& path);
  PathLock(PathLock&&) noexcept = default;
  PathLock& operator=(PathLock&&) = delete;
  ~PathLock();

 private:
  PathLock(std::string file, UniqueFd fd) noexcept;

  std::string file_;
  UniqueFd fd_;
};

}  // namespace hmc
