// What a path could be, and when to say that it is not.
#pragma once

#include <memory>

#include "hmc/deadline.h"
#include "hmc/path.h"
#include "hmc/status.h"

namespace hmc {

class PeerImpl;

// The path between memory here and memory of the peer, once it is connected and the path is known. Engine lock not held.
Result<Path> path_to(const std::shared_ptr<PeerImpl>& peer, const Device& source, const Device& target, Deadline deadline);

// What the hardware between two memories of one host could carry, bytes per second; 0 where nobody says.
double hardware_bandwidth(const Device& local, const Device& remote);
// Says so, once per pair of devices, when `path` carries less than half of what the hardware could, or is staged where a direct
// path is to be expected: with what stood in the way. Any thread.
void warn_if_poor(const Path& path);

}  // namespace hmc
