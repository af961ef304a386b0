// agree(): the caller's part of an Agreement, common to shrink() and grow().
#pragma once

#include <memory>

#include "collective/group.h"
#include "collective/shrinks.h"
#include "hmc/deadline.h"
#include "hmc/status.h"

namespace hmc {

enum class Agreed : std::uint8_t {
  living,  // the group of those who are left
  whole,   // all processes or none: if one is lost, all fail
};

// The group that the processes of `old` agree on, joined. No lock held. Errors: timeout, cancelled, peer_lost.
Result<std::shared_ptr<Group>> agree(const Group& old, Shrinking& shrinking, Agreed what, Deadline deadline);

// A wait that its caller's signal or deadline ended. "rank 1 (host:7)", "rank 2 (host:8) to call grow()".
Status ended_early(const std::string& self, const std::string& awaited);

}  // namespace hmc
