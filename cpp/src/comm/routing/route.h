// Route: how operations between one local and one remote device travel. Chosen once per pair, kept until it fails; memory that it
// does not reach has another. Owned by PeerRoutes; valid until the peer ends.
#pragma once

#include <cstddef>

#include "comm/routing/transport_set.h"
#include "hmc/path.h"

namespace hmc {

class Endpoint;
class EndpointSlot;
class Transport;

struct Route {
  Transport* transport = nullptr;
  TransportSet bit = 0;
  Endpoint* endpoint = nullptr;
  Path path;  // counters are updated as operations are posted
  EndpointSlot* slot = nullptr;
  TransportSet without = 0;  // what was left out when it was chosen
  bool staged = false;
  // Adds a posted operation, or a message, to the counters of path() and counters().
  void count(bool is_put, std::size_t bytes);
};

}  // namespace hmc
