#include "progress/connecting.h"

#include <sys/epoll.h>

#include <utility>
#include <vector>

#include "progress/address.h"
#include "progress/listener.h"

namespace hmc {

Result<Connecting> Connecting::start(std::string_view address) {
  Connecting connecting(address);
  if (unix_path(address).empty()) {
    HMC_ASSIGN(const std::vector<SocketAddress> targets, numeric_tcp(address, false));
    if (targets.empty()) {
      HMC_ASSIGN(connecting.lookup_, HostLookup::start(address));
    } else {
      HMC_ASSIGN(connecting.socket_, start_connect(targets, address));
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
    HMC_ASSIGN(socket_, start_connect(*found, address_));
    return false;
  }
  HMC_TRY(connect_outcome(socket_.get(), address_));
  return true;
}

}  // namespace hmc
