// HostLookup: the addresses of a host name, looked up on a thread of its own. A name server may take half a minute, and
// getaddrinfo() cannot be interrupted.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "hmc/deadline.h"
#include "hmc/status.h"
#include "progress/address.h"

namespace hmc {

// Destroying it abandons the lookup; its thread then ends by itself.
class HostLookup {
 public:
  // Looks up the host of "tcp://host:port". Never blocks. Errors: transport (no thread), out_of_memory (no descriptor).
  static Result<HostLookup> start(std::string_view address);
  // Readable once the lookup has ended.
  [[nodiscard]] int fd() const noexcept;
  // What was found, to be called once, after fd() has become readable. Errors: those of resolve_tcp().
  Result<std::vector<SocketAddress>> take();

 private:
  struct State;
  explicit HostLookup(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  std::shared_ptr<State> state_;  // with the thread
};

// As resolve_tcp() for a client, until the deadline. No lock held. Errors: timeout besides.
Result<std::vector<SocketAddress>> resolve_tcp_until(std::string_view address, Deadline deadline);

}  // namespace hmc
