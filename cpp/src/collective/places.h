// Where the ranks of a group are: hosts, and the cards that the application wrote down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/group.h"
#include "collective/island.h"
#include "hmc/topology.h"

namespace hmc {

// By rank; null: not written down. Each card is that of one rank. They belong to World::written().
std::vector<const TopologyCard*> written_cards(const Group& group);
// Engine lock not held. By rank: a number, the same for ranks of one host. As written down, else by the hosts' kernels.
std::vector<std::uint32_t> hosts_of(const Group& group);
// Engine lock not held. Ranks of one host whose devices are of one vendor, by their first ranks. Bandwidths are those that are
// written down: of the rank's fastest link to another island, else of its host's fastest NIC. Where one is not, all are 1.
std::vector<Island> islands_of(const Group& group);
// Of the host's fastest NIC, bytes per second; 0: none is written down.
double nic_bandwidth(const Topology& written, const std::string& host);

}  // namespace hmc
