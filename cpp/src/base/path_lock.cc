#include "base/path_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "hmc/deadline.h"

namespace hmc {
namespace {

constexpr auto longest_wait = std::chrono::seconds(1);

// Whether `file` is still the one behind `fd`, and not what another holder removed or made since.
bool is_at(const std::string& file, int fd) noexcept {
  struct stat held{}, there{};
  return fstat(fd, &held) == 0 && lstat(file.c_str(), &there) == 0 && held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

}  // namespace

PathLock::PathLock(std::string file, UniqueFd fd) noexcept : file_(std::move(file)), fd_(std::move(fd)) {}

Result<PathLock> PathLock::take(const std::string& path) {
  const std::string file = path + ".hmc-lock";
  const Deadline deadline = Deadline::after(longest_wait);
  for (;;) {
    UniqueFd fd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!fd) return errno_status("cannot lock " + file, errno);
    const bool locked = flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno != EWOULDBLOCK && errno != EINTR) return errno_status("cannot lock " + file, errno);
    if (locked && is_at(file, fd.get())) return PathLock(file, std::move(fd));
    if (deadline.passed()) {
      return Status(Code::timeout, "cannot lock " + file + ": another process has held it for a second; it may be stopped");
    }
    fd.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

PathLock::~PathLock() {
  struct stat info{};
  // A file with content is no lock's. In a child after fork() the descriptor is closed, and the lock the parent's.
  if (fd_ && fstat(fd_.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0 && is_at(file_, fd_.get()))
    unlink(file_.c_str());
}

}  // namespace hmc
