// Path: the route between a local and a remote device, and why. Plain data: a snapshot of when it was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hmc/device.h"
#include "hmc/export.h"

namespace hmc {

struct Path {
  std::string transport;                                         // "local", "shm", "tcp", ...
  Device source;                                                 // here
  Device target;                                                 // at the peer
  bool direct = true;                                            // no intermediate copy through host staging
  bool encrypted = false;                                        // payload on the wire
  std::string detail;                                            // "mapped memfd", "both ends copying", "shared ring", "4 streams"
  std::string reason;                                            // why this one
  std::string runner_up;                                         // the transport that takes over if this one fails; empty: none
  std::string messages;                                          // the transport of send and recv, where it is another one
  std::vector<std::string> rejected;                             // "tcp: slower (...)", "shm: not on this host"
  double latency_us = 0;                                         // expected, one way, small message
  double bandwidth = 0;                                          // expected, bytes per second, large message
  double hardware_bandwidth = 0;                                 // what the hardware could carry as far as known; 0: not known
  std::uint64_t bytes_put = 0, bytes_got = 0, bytes_staged = 0;  // moved so far on this path from this side

  [[nodiscard]] HMC_API std::string str() const;  // "cpu -> cpu: shm (mapped memfd), because ..."
};

// A transport as `hmc info` shows it.
struct TransportInfo {
  std::string name;
  bool available;
  std::string reason;  // why not, or how it will be used
};
// Every transport compiled in, usable or not, in the order of preference; never fails. Any thread.
HMC_API std::vector<TransportInfo> list_transports();

}  // namespace hmc
