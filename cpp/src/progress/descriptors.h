// Descriptors: the epoll set of an engine and who is told about each descriptor. Engine lock held for every call.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/fd.h"
#include "hmc/status.h"
#include "progress/fd_handler.h"

namespace hmc {

class Descriptors {
 public:
  Status open();
  void close() noexcept { epoll_.reset(); }  // nothing is watched any more
  // Errors: closed; what the system refused.
  Status watch(int fd, std::uint32_t events, FdHandler& handler);
  void modify(int fd, std::uint32_t events);
  void unwatch(int fd);
  // Tells handlers what is ready now. A handler may unwatch any descriptor: events already fetched for it are dropped, also when
  // the same number is watched anew meanwhile. True if any was told.
  bool poll();
  // Readable while any watched descriptor is ready.
  [[nodiscard]] int fd() const noexcept { return epoll_.get(); }

 private:
  struct Entry {
    FdHandler* handler;
    std::uint32_t generation;
  };
  UniqueFd epoll_;
  std::unordered_map<int, Entry> entries_;
  std::uint32_t generation_ = 0;
};

}  // namespace hmc
