// Sets of a Context's transports: those that do not reach some memory.
#pragma once

#include <cstdint>

#include "hmc/status.h"

namespace hmc {

using TransportSet = std::uint32_t;  // a bit for each, by its place in the table; there are at most 32

// Whether a failure to register, export or map memory says that this transport does not reach it, so that another one may.
[[nodiscard]] inline bool gives_way(const Status& status) noexcept {
  return status.code() == Code::unsupported || status.code() == Code::device || status.code() == Code::out_of_memory;
}

}  // namespace hmc
