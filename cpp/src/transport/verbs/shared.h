// What the links of one transport share.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "progress/engine.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/region.h"

namespace hmc::verbs {

class Link;

// Outlives the transport while links or regions do. Engine lock held.
struct Shared {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Nics> nics = std::make_shared<Nics>();
  DeviceMemory devices;
  Patience patience;
  double silence_seconds = 30;                                   // of a card with work, after which a rail is given up
  std::size_t ports = 1;                                         // ports that a link uses
  std::size_t queue_pairs = 1;                                   // rails per port
  std::unordered_map<std::uint32_t, std::weak_ptr<Link>> links;  // by number, which their work requests carry
  std::uint32_t last_number = 0;
  std::size_t held = 0;  // operations that wait for a stream of a device
  // Links with completions since they last advanced. The transport empties it.
  std::vector<std::shared_ptr<Link>> turns;
  // Hands a completion to its link, if that lives. A callback may destroy endpoints, or make more.
  void take(const ibv_wc& completion);
};

}  // namespace hmc::verbs
