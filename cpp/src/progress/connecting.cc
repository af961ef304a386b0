#include "progress/connecting.h"

#include <sys/epoll.h>

#include <span>
#include <utility>

#include "progress/listener.h"

namespace hmc {

Result<Connecting> Connecting::start(std::string_view address) {
  Connecting connecting(address);
  if (unix_path(address).empty()) {
    HMC_ASSIGN(connecting.targets_, numeric_tcp(address, false));
    if (connecting.targets_.empty()) {
      HMC_ASSIGN(connecting.lookup_, HostLookup::start(address));
    } else {
      HMC_TRY(connecting.try_next());
    }
  } else {
    HMC_ASSIGN(connecting.socket_, start_connect(address));
  }
  return connecting;
}

std::uint32_t Connecting::events() const noexcept { return lookup_ ? EPOLLIN : EPOLLOUT; }

Result<bool> Connecting::advance() {
  if (lookup_) {
    auto found = lookup_->take();
    lookup_.reset();
    if (!found.ok()) return found.status();
    targets_ = std::move(*found);
    HMC_TRY(try_next());
    return false;
  }
  const Status outcome = connect_outcome(socket_.get(), address_);
  if (outcome.ok()) return true;
  if (tried_ == targets_.size()) return outcome;
  HMC_TRY(try_next());
  return false;
}

Status Connecting::try_next() {
  std::span<const SocketAddress> untried = std::span(targets_).subspan(tried_);
  auto socket = start_connect(untried, address_);
  tried_ = targets_.size() - untried.size();
  if (socket.ok()) socket_ = std::move(*socket);
  return socket.status();
}

}  // namespace hmc
