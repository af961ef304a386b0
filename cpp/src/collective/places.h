// Where the ranks of a group are: hosts, and the cards that the application wrote down.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/group.h"
#include "hmc/topology.h"

namespace hmc {

// By rank; null: not written down. Each card is that of one rank. They belong to World::written().
std::vector<const TopologyCard*> written_cards(const Group& group);
// Engine lock not held. By rank: a number, the same for ranks of one host. As written down, else by the hosts' kernels.
std::vector<std::uint32_t> hosts_of(const Group& group);

}  // namespace hmc
