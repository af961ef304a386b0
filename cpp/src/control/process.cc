#include "control/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace hmc::control {
namespace {

#ifndef SO_PEERPIDFD
constexpr int SO_PEERPIDFD = 77;  // Linux 6.5
#endif

Status gone(int error) { return Status(Code::peer_lost, "the process behind the Unix socket is gone", error); }

Result<UniqueFd> open_pidfd(int socket, int pid) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    UniqueFd owned(fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return owned;
  }
  if (errno == ESRCH || errno == EINVAL || errno == ENODATA) return gone(errno);
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) return errno_status("cannot watch the peer's process", errno);
  if (pid <= 0) return UniqueFd();
  fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0 && errno == ESRCH) return gone(errno);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
    return errno_status("cannot watch the peer's process", errno);
  return UniqueFd(fd);
}

// struct pidfd_info of Linux 6.13, up to the exit code of 6.15; declared here because distribution headers are older.
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup_id;
  std::uint32_t ids[11];
  std::int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr std::uint64_t pidfd_info_exit = 1U << 3;

std::string describe_wait_status(int status) {
  if (WIFSIGNALED(status)) return " was killed by signal " + std::to_string(WTERMSIG(status));
  return " exited with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Result<PeerProcess> peer_process(int unix_socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return errno_status("cannot learn who is behind the Unix socket", errno);
  }
  if (credentials.uid != geteuid()) {
    return Status(Code::authentication, "the process behind the Unix socket runs as user " + std::to_string(credentials.uid) +
                                            ", not as user " + std::to_string(geteuid()) +
                                            "; use TCP with a job key between users");
  }
  PeerProcess process;
  process.pid = credentials.pid;
  HMC_ASSIGN(process.pidfd, open_pidfd(unix_socket, credentials.pid));
  return process;
}

bool is_dead(const PeerProcess& process) noexcept {
  if (!process.pidfd) return false;
  pollfd entry{process.pidfd.get(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

std::string describe_death(const PeerProcess& process) {
  const std::string who = process.pid > 0 ? "process " + std::to_string(process.pid) : std::string("the peer's process");
  if (!process.pidfd) return who + " died";
  // Our own child that nobody has waited for yet: look without reaping.
  siginfo_t info{};
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process.pidfd.get()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid != 0) {
    if (info.si_code == CLD_EXITED) return who + " exited with status " + std::to_string(info.si_status);
    return who + " was killed by signal " + std::to_string(info.si_status);
  }
  PidfdInfo exit_info{};
  exit_info.mask = pidfd_info_exit;
  if (ioctl(process.pidfd.get(), _IOWR(0xFF, 11, PidfdInfo), &exit_info) == 0 && (exit_info.mask & pidfd_info_exit) != 0) {
    return who + describe_wait_status(exit_info.exit_code);
  }
  return who + " died";
}

Result<UniqueFd> make_proof(const Secret& secret) {
  UniqueFd fd = make_memfd("hmc-proof");
  const bool sealable = static_cast<bool>(fd);
  // Where memfd is forbidden any file in memory will do: the peer only reads it.
  if (!fd && errno != EMFILE && errno != ENFILE) fd = UniqueFd(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd) return errno_status("cannot make a memfd or a file in /dev/shm", errno);
  if (write(fd.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()))
    return errno_status("cannot fill a memfd", errno);
  if (sealable && fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
    return errno_status("cannot seal a memfd", errno);
  return fd;
}

bool check_proof(int fd, const Secret& secret) noexcept {
  // Only memory-backed files answer this, and reading them never blocks: a file of a user's own file system could hang the engine.
  if (fcntl(fd, F_GET_SEALS) < 0) return false;
  struct stat info{};
  Secret found{};
  if (fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(found.size())) return false;
  if (pread(fd, found.data(), found.size(), 0) != static_cast<ssize_t>(found.size())) return false;
  return equal_secrets(found, secret);
}

}  // namespace hmc::control
