// What the two ends of a staging link say to each other, as signals of their carrier.
#pragma once

#include <optional>
#include <variant>

#include "base/wire.h"
#include "hmc/status.h"

namespace hmc::staging {

// Where bytes are carried rather than shared: the sender's ring, and its mirror of the receiver's ring, as carrier regions.
struct Rings {
  Bytes own;
  Bytes mirror;
};
// A slot of the sender's ring: unload it into the regions that its table names, or load it from them.
struct Chunk {
  bool push = true;
  std::uint32_t slot = 0;
  std::uint32_t entries = 0;
  std::uint64_t bytes = 0;
};
// The slot is the receiver's again.
struct Finished {
  std::uint32_t slot = 0;
  Code code = Code::ok;
  std::string message;
};
using Message = std::variant<Rings, Chunk, Finished>;

Bytes encode(const Message& message);
std::optional<Message> decode(ByteSpan bytes);

}  // namespace hmc::staging
