// FdHandler: receives the events of a watched descriptor.
#pragma once

#include <cstdint>

namespace hmc {

class FdHandler {
 public:
  virtual void on_ready(std::uint32_t events) = 0;  // EPOLL* bits; engine lock held; never blocks

 protected:
  ~FdHandler() = default;
};

}  // namespace hmc
