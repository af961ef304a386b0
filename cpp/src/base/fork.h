// After fork() the child's copy of HMC is dead: descriptors closed, every public call refused.
#pragma once

#include <cstdint>

#include "hmc/status.h"

namespace hmc {

// Number of forks this process descends from since HMC was first used; objects remember it at creation. One relaxed load.
std::uint32_t fork_epoch() noexcept;
// Installs the handler once per process (pthread_atfork). Called by Engine::create.
void install_fork_handler();
// The error of every call on an object made before a fork.
Status forked_status();

}  // namespace hmc
