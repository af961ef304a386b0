#include "base/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "base/fd.h"
#include "base/random.h"

namespace hmc {
namespace {

constexpr std::string_view head = ".hmc-", tail = ".tmp";
constexpr std::size_t digits = 16;

// Of its own length: that of `path` may be the longest possible.
std::string temporary_beside(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  std::string name = path.substr(0, slash == std::string::npos ? 0 : slash + 1) + std::string(head);
  std::uint64_t number = random_u64();
  for (std::size_t i = 0; i < digits; ++i, number >>= 4) name += "0123456789abcdef"[number & 15];
  return name + std::string(tail);
}

Status write_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno_status("cannot be written", errno);
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

}  // namespace

Status replace_file(const std::string& path, std::string_view text, mode_t mode, const struct stat* like) {
  const std::string fresh = temporary_beside(path);
  const UniqueFd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, like == nullptr ? mode : 0600));
  if (!fd) return errno_status("cannot be written", errno);
  Status written = write_text(fd.get(), text);
  struct stat made{};
  if (written.ok() && like != nullptr &&
      (fstat(fd.get(), &made) != 0 ||
       ((made.st_uid != like->st_uid || made.st_gid != like->st_gid) && fchown(fd.get(), like->st_uid, like->st_gid) != 0) ||
       fchmod(fd.get(), like->st_mode & 07777) != 0)) {
    written = errno_status("cannot be written", errno);
  }
  if (written.ok() && rename(fresh.c_str(), path.c_str()) != 0) written = errno_status("cannot be replaced", errno);
  if (!written.ok()) unlink(fresh.c_str());
  return written;
}

bool is_temporary_name(std::string_view name) noexcept {
  return name.size() == head.size() + digits + tail.size() && name.starts_with(head) && name.ends_with(tail) &&
         name.substr(head.size(), digits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace hmc
