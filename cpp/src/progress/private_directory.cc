#include "progress/private_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/fd.h"
#include "base/random.h"
#include "progress/address.h"
#include "progress/listener.h"

namespace hmc {
namespace {

constexpr std::string_view suffix = ".sock";
// Longest file name in it that must still fit into a socket address.
constexpr std::size_t longest_directory = 107 - sizeof("/4194304-0123456789abcdef.sock");

// A directory of this user: a stale variable (su, sudo) must not make us write into somebody else's.
bool is_own_directory(const char* path) {
  struct stat info{};
  return path[0] == '/' && stat(path, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

std::string octal(unsigned mode) {
  char text[16];
  const auto end = std::to_chars(text, text + sizeof text, mode, 8).ptr;
  return "0" + std::string(text, end);
}

// The process id that a socket file's name starts with, or 0.
pid_t pid_of(std::string_view name) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  return error == std::errc() && end != name.data() + name.size() && *end == '-' && pid > 0 ? pid : 0;
}

}  // namespace

Result<std::string> private_directory() {
  // Not in the table of HMC's own variables: the system sets it.
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string directory = "/tmp/hmc-" + std::to_string(geteuid());
  if (runtime != nullptr && is_own_directory(runtime)) {
    const std::string wanted = std::string(runtime) + "/hmc";
    if (wanted.size() <= longest_directory) directory = wanted;
  }
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return errno_status("create the directory " + directory, errno);
  // Checked on the opened directory: a link or a swap in /tmp must not pass.
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!fd && (errno == EMFILE || errno == ENFILE)) return errno_status("open the directory " + directory, errno);
  if (!fd || fstat(fd.get(), &info) != 0) {
    return Status(Code::authentication,
                  directory + " is not a directory that this user can open; remove it, or set XDG_RUNTIME_DIR", errno);
  }
  if (info.st_uid != geteuid()) {
    return Status(Code::authentication, directory + " belongs to user " + std::to_string(info.st_uid) + ", not to " +
                                            std::to_string(geteuid()) +
                                            "; remove it, or set XDG_RUNTIME_DIR to a directory of your own");
  }
  if ((info.st_mode & 077) != 0) {
    return Status(Code::authentication,
                  directory + " is open to other users (mode " + octal(info.st_mode & 07777) + "); run: chmod 700 " + directory);
  }
  return directory;
}

std::string fresh_socket_path(const std::string& directory) {
  char text[16];
  const auto end = std::to_chars(text, text + sizeof text, random_u64(), 16).ptr;
  return directory + "/" + std::to_string(getpid()) + "-" + std::string(text, end) + std::string(suffix);
}

void remove_stale_sockets(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(directory.c_str()), closedir);
  if (!entries) return;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    const pid_t pid = pid_of(name);
    if (pid == 0 || !name.ends_with(suffix) || kill(pid, 0) == 0 || errno != ESRCH) continue;
    const std::string path = directory + "/" + std::string(name);
    const auto address = unix_socket_address(path);
    if (address.ok() && !unix_socket_alive(address.value())) unlink(path.c_str());
  }
}

}  // namespace hmc
