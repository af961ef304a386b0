#include "progress/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "progress/listener.h"

namespace hmc {
namespace {

constexpr std::string_view unix_prefix = "unix:";
constexpr std::string_view tcp_prefix = "tcp://";
constexpr std::size_t max_addresses = 8;

Status malformed(std::string_view address) {
  return {Code::invalid_argument,
          "\"" + std::string(address) +
              "\" is no address; expected unix:/path, tcp://host:port or tcp://[v6]:port with a port of 0 to 65535"};
}

struct HostPort {
  std::string host;
  std::string port;
};

Result<HostPort> split_tcp(std::string_view address) {
  if (!address.starts_with(tcp_prefix)) return malformed(address);
  std::string_view rest = address.substr(tcp_prefix.size());
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos) return malformed(address);
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return malformed(address);
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == std::string_view::npos) return malformed(address);
  } else if (host.find(':') != std::string_view::npos) {
    return malformed(address);  // an IPv6 address without its brackets
  }
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (port.empty() || error != std::errc() || end != port.data() + port.size()) return malformed(address);
  if (host.size() > 255 || host.find('\0') != std::string_view::npos) return malformed(address);
  return HostPort{std::string(host), std::to_string(number)};
}

Result<std::vector<SocketAddress>> find_addresses(std::string_view address, int flags) {
  HMC_ASSIGN(HostPort name, split_tcp(address));
  if (name.host.empty() && (flags & AI_PASSIVE) != 0) name.host = "::";
  if (name.host.empty()) return malformed(address);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(name.host.c_str(), name.port.c_str(), &hints, &found); error != 0) {
    return Status(Code::invalid_argument, "the host of " + std::string(address) + " is not known: " + gai_strerror(error), error);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr && addresses.size() < max_addresses; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress one;
    std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
    one.size = entry->ai_addrlen;
    addresses.push_back(one);
  }
  if (addresses.empty()) return Status(Code::invalid_argument, "the host of " + std::string(address) + " has no address");
  return addresses;
}

Status connect_error(std::string_view address, int error) {
  const std::string what = "connect to " + std::string(address);
  if (error == ENOENT) return {Code::peer_lost, what + ": no such socket; the peer has ended or listens elsewhere", error};
  if (error == EACCES || error == EPERM) return {Code::authentication, what + ": permission denied", error};
  return errno_status(what, error);
}

Result<UniqueFd> connect_one(const SocketAddress& target, std::string_view address) {
  UniqueFd fd(socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status("make a socket for " + std::string(address), errno);
  set_no_delay(fd.get());
  if (connect(fd.get(), target.get(), target.size) != 0 && errno != EINPROGRESS) return connect_error(address, errno);
  // Loopback answers before connect() returns, so that a refusal is known here and the next address can be tried.
  pollfd state{fd.get(), POLLOUT, 0};
  if (poll(&state, 1, 0) > 0 && (state.revents & (POLLERR | POLLHUP)) != 0) HMC_TRY(connect_outcome(fd.get(), address));
  return fd;
}

}  // namespace

std::string_view unix_path(std::string_view address) noexcept {
  return address.starts_with(unix_prefix) ? address.substr(unix_prefix.size()) : std::string_view();
}

Result<SocketAddress> unix_socket_address(std::string_view path) {
  SocketAddress address;
  auto* name = reinterpret_cast<sockaddr_un*>(&address.storage);
  if (!path.starts_with('/') || path.find('\0') != std::string_view::npos) return malformed("unix:" + std::string(path));
  if (path.size() >= sizeof name->sun_path) {
    return Status(Code::invalid_argument, "the socket path " + std::string(path) + " has " + std::to_string(path.size()) +
                                              " bytes, the limit is " + std::to_string(sizeof name->sun_path - 1) +
                                              "; use a shorter directory");
  }
  name->sun_family = AF_UNIX;
  std::memcpy(name->sun_path, path.data(), path.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

Result<std::vector<SocketAddress>> resolve_tcp(std::string_view address, bool passive) {
  HMC_ASSIGN(std::vector<SocketAddress> numeric, numeric_tcp(address, passive));
  return numeric.empty() ? find_addresses(address, passive ? AI_PASSIVE : 0) : std::move(numeric);
}

Result<std::vector<SocketAddress>> numeric_tcp(std::string_view address, bool passive) {
  auto found = find_addresses(address, AI_NUMERICHOST | (passive ? AI_PASSIVE : 0));
  if (!found.ok() && found.status().native() == EAI_NONAME) return std::vector<SocketAddress>();
  return found;
}

std::string tcp_text(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return "tcp://" + std::string(text) + ":" + std::to_string(ntohs(v4->sin_port));
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  const std::string port = std::to_string(ntohs(v6->sin6_port));
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, text, sizeof text);
    return "tcp://" + std::string(text) + ":" + port;
  }
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  std::string host = text;
  if (v6->sin6_scope_id != 0) host += "%" + std::to_string(v6->sin6_scope_id);
  return "tcp://[" + host + "]:" + port;
}

bool is_loopback(const SocketAddress& address) noexcept {
  if (address.family() == AF_UNIX) return true;
  if (address.family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return v6->sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

void set_no_delay(int fd) noexcept {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

bool unix_socket_alive(const SocketAddress& address) noexcept {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return true;  // not known: nothing may be removed
  return connect(probe.get(), address.get(), address.size) == 0 || (errno != ECONNREFUSED && errno != ENOENT);
}

Result<UniqueFd> start_connect(std::string_view address) {
  if (const std::string_view path = unix_path(address); !path.empty()) {
    HMC_ASSIGN(const SocketAddress target, unix_socket_address(path));
    return connect_one(target, address);
  }
  HMC_ASSIGN(const std::vector<SocketAddress> targets, numeric_tcp(address, false));
  if (targets.empty()) return Status(Code::invalid_argument, "the host of " + std::string(address) + " is no numeric address");
  std::span<const SocketAddress> untried = targets;
  return start_connect(untried, address);
}

Result<UniqueFd> start_connect(std::span<const SocketAddress>& targets, std::string_view address) {
  Status last;
  while (!targets.empty()) {
    auto fd = connect_one(targets.front(), address);
    targets = targets.subspan(1);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

Status connect_outcome(int fd, std::string_view address) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? Status() : connect_error(address, error);
}

bool is_local_address(std::string_view address) {
  if (address == "unix" || !unix_path(address).empty()) return true;
  const auto targets = resolve_tcp(address, true);
  return targets.ok() && std::all_of(targets.value().begin(), targets.value().end(), is_loopback);
}

}  // namespace hmc
