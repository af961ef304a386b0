// How much host memory can be committed now. The kernel grants shared memory beyond that too, and then kills processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace hmc {

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string bound;  // "on this host": for messages
};

// The least of what the host and the control groups (v1, v2) of this process have left, page cache and swap included. Empty where
// the system does not say. Reads files below `root`: some tens of microseconds. Any thread.
std::optional<AvailableMemory> available_memory(const std::filesystem::path& root = "/");

}  // namespace hmc
