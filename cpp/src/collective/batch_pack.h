// How the calls of a batch are launched: small ones of a kind as one call, over one array that has all of theirs. Every rank packs
// alike, by what every rank passes alike.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/execute.h"
#include "device/runtime.h"
#include "hmc/buffer.h"

namespace hmc {

inline constexpr std::uint64_t packed_call_bytes = 32 << 10;  // of a call's largest buffer, at most
inline constexpr std::uint64_t pack_bytes = 256 << 10;        // of all of a pack, at most

// Memory of a caller, and where it is in the pack, which is CPU memory.
struct PackedPiece {
  DeviceSpan caller;
  std::byte* packed = nullptr;
};
// Blocking. Errors: device.
Status pack(const PackedPiece& piece);
Status unpack(const PackedPiece& piece);

struct Launch {
  CollectiveCall call;
  std::vector<PackedPiece> results = {};  // to copy to the caller once it is complete
  std::vector<MemoryView> views = {};     // of a pack: keep the callers' memory and its own
};

// In the order of the first call of each. Reads the inputs of packs, on which all streams are done. `packs`: small calls are
// packed; else each is its own launch. Errors: device.
Result<std::vector<Launch>> launches_of(std::vector<CollectiveCall> calls, bool packs);

}  // namespace hmc
