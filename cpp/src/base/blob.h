// Blob: opaque bytes, perhaps with descriptors, that one layer exports and the same layer of a peer imports.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.h"

namespace hmc {

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

inline constexpr std::size_t max_blob_fds = 128;  // what a channel passes with one message

struct Blob {
  Bytes bytes;
  std::vector<UniqueFd> fds;  // can be carried only where a channel passes descriptors (same host)
};

}  // namespace hmc
