// Where the ranks of a group are: hosts, and the cards that the application wrote down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/group.h"
#include "collective/island.h"
#include "hmc/measurement.h"
#include "hmc/topology.h"

namespace hmc {

// By rank; null: not written down. Each card is that of one rank. They belong to World::written().
std::vector<const TopologyCard*> written_cards(const Group& group);
// Engine lock not held. By rank: a number, the same for ranks of one host. As written down, else by the hosts' kernels.
std::vector<std::uint32_t> hosts_of(const Group& group);
// Engine lock not held. Islands: ranks of one host whose devices are of one vendor, ordered by their first ranks. Bandwidths are
// those of each rank's fastest link to another island as measured; else as written in the topology, or of its host's fastest NIC
// there. If one is missing, all are assumed_border. `measured`: may be null.
std::vector<Island> islands_of(const Group& group, const Measurement* measured = nullptr);
// Bandwidth of the host's fastest NIC in the written topology, bytes per second; 0: it has none.
double nic_bandwidth(const Topology& written, const std::string& host);

}  // namespace hmc
