// What a path could be, and when to say that it is not.
#pragma once

#include <vector>

#include "hmc/path.h"

namespace hmc {

struct TransportFactory;

// The transports of this build, and behind them what a test has added. Additions are made before the first Context.
std::vector<const TransportFactory*>& all_transports();

// What the hardware between two memories of one host could carry, bytes per second; 0 where nobody says.
double hardware_bandwidth(const Device& local, const Device& remote);
// Says so, once per pair of devices, when `path` carries less than half of what the hardware could, or is staged where a direct
// path is to be expected: with what stood in the way. Any thread.
void warn_if_poor(const Path& path);

}  // namespace hmc
