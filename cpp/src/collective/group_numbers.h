// The numbers of new groups: a scope, which must be free in every process of the group, and an id that nobody else's has.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "collective/world.h"

namespace hmc {

inline std::uint32_t random_scope() { return static_cast<std::uint32_t>(random_u64()) & ~collective_scope_bit; }

// `which`: the color of a group made by split(), negative for one made by shrink().
inline std::uint64_t child_id(std::uint64_t parent, std::uint32_t scope, int which) {
  std::uint64_t id = parent ^ (std::uint64_t{scope} << 32 | static_cast<std::uint32_t>(which));
  id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9ULL;
  id = (id ^ (id >> 27)) * 0x94d049bb133111ebULL;
  return id ^ (id >> 31);
}

}  // namespace hmc
