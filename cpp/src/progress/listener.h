// Listener: one per Context. Accepts on its Unix socket and on TCP, and hands each socket to whom its first bytes name.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "hmc/status.h"
#include "progress/engine.h"
#include "progress/source.h"

namespace hmc {

// The first eight bytes a client sends name the protocol of the connection.
using Magic = std::array<char, 8>;
inline constexpr Magic control_magic{'H', 'M', 'C', '-', 'C', 'T', 'L', '\n'};

struct AcceptedSocket {
  UniqueFd fd;  // non-blocking, close-on-exec, magic already read
  bool unix_socket;
  std::string remote;  // "tcp://[::1]:41234", "unix"
  Source source = 0;
};

// All calls with the engine lock held, the destructor too. A route's handler may call anything but destroy the Listener (defer
// that).
class Listener {
 public:
  static Result<std::unique_ptr<Listener>> create(std::shared_ptr<Engine> engine);
  virtual ~Listener() = default;
  // "unix" (fresh path in the private directory), "unix:/path", "tcp://host:port" (port 0: any; "[::]" is dual stack).
  // Returns the address with the real path or port. Errors: invalid_argument (malformed, a path too long for a socket, in use),
  // authentication (see private_directory), unsupported, transport. Names are resolved, which may block: pass numbers where the
  // lock is contended. Where the host has no IPv6, "[::]" listens on 0.0.0.0 and says so in the result.
  virtual Result<std::string> listen(std::string_view address) = 0;
  // Connections that start with `magic` go to `handler` (engine lock held). A client has 5 s for its magic; at most 256 wait at
  // once, then one gives way (choose_discarded).
  virtual void route(const Magic& magic, std::function<void(AcceptedSocket)> handler) = 0;
  virtual void unroute(const Magic& magic) = 0;
  [[nodiscard]] virtual std::vector<std::string> addresses() const = 0;
};

// The user's private directory for sockets, mode 0700, owned by the user, created if need be: $XDG_RUNTIME_DIR/hmc where that
// variable names a directory of this user, else /tmp/hmc-<uid>. Errors: authentication when it is owned by somebody else or open to
// others.
Result<std::string> private_directory();
// A non-blocking socket on its way to `address` ("unix:/path", "tcp://host:port" with a numeric host; host names: Connecting);
// writable once connected, SO_ERROR says whether. Errors: invalid_argument (malformed, not numeric), peer_lost (nobody listens, no
// such path), authentication (no permission), transport with native EAGAIN (queue full: try again). Any thread; does not block.
Result<UniqueFd> start_connect(std::string_view address);
// True for unix and for loopback TCP addresses (names are resolved; every address of theirs must be loopback).
bool is_local_address(std::string_view address);

}  // namespace hmc
