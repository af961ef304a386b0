// Connecting: a connection request to an address as text, from the lookup of its host name to the connected socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "hmc/status.h"
#include "progress/address.h"
#include "progress/host_lookup.h"

namespace hmc {

// One thread at a time. Nothing here blocks.
class Connecting {
 public:
  // Errors: those of start_connect(), transport (no thread for the lookup of a name).
  static Result<Connecting> start(std::string_view address);
  [[nodiscard]] bool looking_up() const noexcept { return lookup_.has_value(); }
  // To be watched for events(); then unwatch it and call advance(), which may close it.
  [[nodiscard]] int fd() const noexcept { return lookup_ ? lookup_->fd() : socket_.get(); }
  [[nodiscard]] std::uint32_t events() const noexcept;  // EPOLL*
  // True: connected, take() the socket. False: fd() and events() are new: of a name's first address, or of its next one where the
  // last was refused. Errors: those of start_connect() and resolve_tcp().
  Result<bool> advance();
  UniqueFd take() noexcept { return std::move(socket_); }

 private:
  explicit Connecting(std::string_view address) : address_(address) {}
  Status try_next();

  std::string address_;
  std::optional<HostLookup> lookup_;  // until it has ended
  std::vector<SocketAddress> targets_;
  std::size_t tried_ = 0;  // of targets_
  UniqueFd socket_;
};

}  // namespace hmc
