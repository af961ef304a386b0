// What the links of one tcp transport share. Outlives the transport while links do. Engine lock held.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "progress/engine.h"
#include "progress/listener.h"
#include "transport/kit/served_regions.h"
#include "transport/tcp/frames.h"

namespace hmc::tcp {

class Meeting;
class TcpEndpoint;

struct Shared {
  std::shared_ptr<Engine> engine;
  std::size_t streams = 2;             // HMC_TCP_STREAMS
  int socket_buffer = 0;               // HMC_TCP_BUFFER; 0: left to the kernel
  std::vector<std::string> addresses;  // where peers on any host reach us
  const std::shared_ptr<ServedRegions> regions = std::make_shared<ServedRegions>();
  std::unordered_map<std::uint64_t, std::weak_ptr<Meeting>> meetings;  // by the link id that hellos name
  std::vector<std::shared_ptr<TcpEndpoint>> open;                      // every link that is not closed
  std::array<std::byte, 64 << 10> scratch;                             // where refused bytes go

  // Options of a data connection. Errors are ignored: they cost speed only.
  void tune(int fd) const noexcept;
};

}  // namespace hmc::tcp
