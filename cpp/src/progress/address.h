// Addresses as text ("unix:/path", "tcp://host:port") and as the kernel takes them.
#pragma once

#include <sys/socket.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "hmc/status.h"

namespace hmc {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
};

// The path behind "unix:", or empty.
std::string_view unix_path(std::string_view address) noexcept;
// Errors: invalid_argument for relative, empty or too long paths (107 bytes) and for NUL bytes.
Result<SocketAddress> unix_socket_address(std::string_view path);
// What "tcp://host:port" stands for, at most 8, in the resolver's order. `passive`: to listen on; an empty host is then "::".
// Names are looked up here, which may block for half a minute: not under a lock that others need (host_lookup.h).
// Errors: invalid_argument (malformed, unknown).
Result<std::vector<SocketAddress>> resolve_tcp(std::string_view address, bool passive);
// As resolve_tcp(), but never blocks: empty if the host is a name.
Result<std::vector<SocketAddress>> numeric_tcp(std::string_view address, bool passive);
// A non-blocking socket in connection to the first of `targets` that does not fail immediately; those tried leave `targets`.
// `address` is for messages. Errors, of the last one: peer_lost (no listener), authentication (no permission), transport.
Result<UniqueFd> start_connect(std::span<const SocketAddress>& targets, std::string_view address);
// Of a socket of start_connect() that has become writable. Errors as there.
Status connect_outcome(int fd, std::string_view address);
// "tcp://127.0.0.1:7000" (also for a mapped IPv4 address), "tcp://[::1]:7000".
std::string tcp_text(const SocketAddress& address);
bool is_loopback(const SocketAddress& address) noexcept;
// Small messages leave at once. No effect on other sockets.
void set_no_delay(int fd) noexcept;
// True if something listens on that Unix socket (or its queue is merely full), or if it cannot be found out.
bool unix_socket_alive(const SocketAddress& address) noexcept;

}  // namespace hmc
