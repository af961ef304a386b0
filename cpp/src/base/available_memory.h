// How much host memory can be committed at most. The kernel grants shared memory beyond that too, and then kills processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "hmc/status.h"

namespace hmc {

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string bound;  // "this host has": for messages
};

// The least of what the host has in all and what the control groups (v1, v2) of this process have left, page cache and swap
// included. Of the host not what is left: its estimate, MemAvailable, is far too low where memory is lent to it on demand (a
// virtual machine's balloon) or is a cache that the kernel does not know as one (ZFS). Empty where the system does not say. Reads
// files below `root`: some tens of microseconds. Any thread.
std::optional<AvailableMemory> available_memory(const std::filesystem::path& root = "/");

// Refuses to commit more host memory than that. Errors: out_of_memory. Always ok below 1 MiB, for which the look would take longer
// than what it guards, and with HMC_CHECK_MEMORY=0.
Status check_available(std::uint64_t bytes);

}  // namespace hmc
