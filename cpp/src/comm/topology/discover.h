// What the kernel says of this host.
#pragma once

#include <string>
#include <vector>

#include "hmc/topology.h"

namespace hmc {

std::string host_name();
// Network cards that are up and belong to a device; `sysfs`: where it is mounted.
std::vector<TopologyNic> discover_nics(const std::string& host, const std::string& sysfs);

}  // namespace hmc
