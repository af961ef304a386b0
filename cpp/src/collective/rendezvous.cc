#include "collective/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/path_lock.h"
#include "base/random.h"
#include "progress/host_lookup.h"

namespace hmc {
namespace {

constexpr std::string_view unread_kernel = "unread-";  // no id of a kernel begins so

// Errors: it cannot be seen. A socket that this process may not connect to may be in use.
Result<bool> listens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status("no socket to see whether somebody listens at the rendezvous " + path, errno);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  if (errno == EAGAIN || errno == EINPROGRESS) return true;  // alive, with a full queue of callers
  if (errno == ECONNREFUSED || errno == ENOENT) return false;
  return errno_status("cannot see whether somebody listens at the rendezvous " + path, errno);
}

// The numeric address that packets to `target` leave from; empty if there is no route, or its name is not found in time.
std::string source_address_towards(std::string_view target, Deadline deadline) {
  const auto found = resolve_tcp_until(target, deadline);
  if (!found.ok()) return "";
  for (const SocketAddress& at : *found) {
    const UniqueFd fd(socket(at.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    std::array<char, NI_MAXHOST> text{};
    if (fd && connect(fd.get(), at.get(), at.size) == 0 && getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      return text.data();
    }
  }
  return "";
}

std::string tcp_text(const std::string& host, const std::string& port) {
  return "tcp://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

}  // namespace

MeetingLink::MeetingLink(MeetingLink&& other) noexcept
    : path_(std::exchange(other.path_, {})), target_(std::exchange(other.target_, {})) {}

MeetingLink& MeetingLink::operator=(MeetingLink&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
    target_ = std::exchange(other.target_, {});
  }
  return *this;
}

Result<MeetingLink> MeetingLink::publish(const std::string& path, const std::string& target) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Status(Code::invalid_argument, "the rendezvous path must have 1 to " +
                                              std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes: unix:" + path);
  }
  // What is dead now may have been replaced by another process 0 when it is removed.
  const auto lock = PathLock::take(path);
  if (!lock) return lock.status().with_context("cannot make the rendezvous " + path);
  for (int attempt = 0; attempt < 8; ++attempt) {
    if (symlink(target.c_str(), path.c_str()) == 0) {
      MeetingLink link;
      link.path_ = path;
      link.target_ = target;
      return link;
    }
    if (errno != EEXIST) return errno_status("cannot make the rendezvous " + path, errno);
    struct stat info{};
    if (lstat(path.c_str(), &info) != 0) continue;  // just removed
    if (!S_ISLNK(info.st_mode) && !S_ISSOCK(info.st_mode)) {
      return Status(Code::invalid_argument,
                    "the rendezvous " + path + " is an existing file that is no socket; choose another path");
    }
    HMC_ASSIGN(const bool alive, listens(path));
    if (alive) {
      return Status(Code::invalid_argument, "another process is rank 0 of this job: it listens at the rendezvous " + path +
                                                "; start every process with a rank of its own, or choose another rendezvous");
    }
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return errno_status("cannot remove the dead rendezvous " + path, errno);
  }
  return Status(Code::transport, "the rendezvous " + path + " is being made and removed by others");
}

void MeetingLink::remove() noexcept {
  if (path_.empty()) return;
  std::array<char, 4096> now{};
  const ssize_t length = readlink(path_.c_str(), now.data(), now.size());
  if (length > 0 && std::string_view(now.data(), static_cast<std::size_t>(length)) == target_) unlink(path_.c_str());
  path_.clear();
}

Result<HostPort> parse_tcp(std::string_view address) {
  constexpr std::string_view scheme = "tcp://";
  const Status wrong(Code::invalid_argument, "not a rendezvous: \"" + std::string(address) +
                                                 "\"; give \"unix:/path\", \"tcp://host:port\" or \"tcp://[ipv6]:port\"");
  if (!address.starts_with(scheme)) return wrong;
  address.remove_prefix(scheme.size());
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return wrong;
  std::string_view host = address.substr(0, colon);
  const std::string_view port = address.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const bool digits = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string_view::npos;
  if (host.empty() || !digits || std::stoi(std::string(port)) < 1 || std::stoi(std::string(port)) > 65535) return wrong;
  return HostPort{std::string(host), std::string(port)};
}

bool is_loopback_name(std::string_view host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

std::string listen_address_for(const HostPort& rendezvous) {
  return tcp_text(is_loopback_name(rendezvous.host) ? rendezvous.host : "::", rendezvous.port);
}

std::vector<std::string> reachable_addresses(const std::vector<std::string>& listening, std::string_view rendezvous, bool process_0,
                                             Deadline deadline) {
  std::vector<std::string> addresses;
  const auto meeting = parse_tcp(rendezvous);
  std::string own;
  for (const auto& address : listening) {
    const auto tcp = parse_tcp(address);
    if (!tcp || (tcp->host != "::" && tcp->host != "0.0.0.0")) {
      addresses.push_back(address);
      continue;
    }
    if (!meeting) continue;  // everybody is on this host, and has a Unix address
    if (own.empty()) own = process_0 ? meeting->host : source_address_towards(rendezvous, deadline);
    if (!own.empty()) addresses.push_back(tcp_text(own, tcp->port));
  }
  return addresses;
}

std::string kernel_id() { return kernel_id_from("/proc/sys/kernel/random/boot_id"); }

std::string kernel_id_from(const std::string& file) {
  static const std::string own = std::string(unread_kernel) + std::to_string(random_u64()) + "-" + std::to_string(random_u64());
  std::ifstream in(file);
  std::string id;
  std::getline(in, id);
  return id.empty() ? own : id.substr(0, 64);
}

bool may_be_one_kernel(std::string_view a, std::string_view b) noexcept {
  return a == b || a.starts_with(unread_kernel) || b.starts_with(unread_kernel);
}

}  // namespace hmc
