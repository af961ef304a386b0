// share_memory(): the ranks of a group of one host come to map the same memory.
#pragma once

#include <memory>

#include "hmc/deadline.h"
#include "hmc/status.h"

namespace hmc {

class Group;

// Collective over all local Members; the group has begun no other one. ok without memory: the ranks are on several hosts, too many,
// or one of them cannot map it. Engine lock not held. Errors: those of a collective.
Status share_memory(const std::shared_ptr<Group>& group, Deadline deadline);
// For a group that its ranks have just agreed on. ok where a rank has died since: the group's next collective says so.
Status share_memory_of_new(const std::shared_ptr<Group>& group, Deadline deadline);

}  // namespace hmc
