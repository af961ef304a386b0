// Communicator::subgroup: a group that its members make alone.
#include <algorithm>
#include <string>
#include <utility>

#include "collective/communicator_state.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

// The same at every member, and another than a split's of these numbers.
std::uint64_t subgroup_id(std::uint64_t parent, std::uint32_t number) {
  std::uint64_t id = (parent + number) * 0x9e3779b97f4a7c15ULL;
  id = (id ^ (id >> 32)) * 0xd6e8feb86659fd93ULL;
  return id ^ (id >> 32);
}

Status refuse(const std::string& why) { return {Code::invalid_argument, "subgroup: " + why}; }

}  // namespace

Result<Communicator> Communicator::subgroup(std::span<const int> ranks, std::uint32_t number) const {
  if (!state_) return Status(Code::invalid_argument, "the Communicator is empty");
  const auto& parent = state_->group;
  HMC_TRY(parent->open());
  if (number == 0 || number == world_scope || (number & collective_scope_bit) != 0)
    return refuse("number " + std::to_string(number) + "; numbers are 2 to 2147483647");
  std::vector<RankInfo> infos;
  std::vector<std::uint32_t> local;
  std::vector<bool> named(parent->size(), false);
  for (const int rank : ranks) {
    if (rank < 0 || static_cast<std::uint32_t>(rank) >= parent->size()) return no_such_rank("rank", rank, *parent);
    const auto old = static_cast<std::uint32_t>(rank);
    if (named[old]) return refuse("rank " + std::to_string(rank) + " is there twice");
    named[old] = true;
    if (std::ranges::binary_search(parent->local(), old)) local.push_back(static_cast<std::uint32_t>(infos.size()));
    infos.push_back(parent->rank(old));
    infos.back().origin = old;
  }
  if (local.empty()) return refuse("none of the ranks is of this process; only members make the group");
  {
    const auto lock = parent->engine()->lock();
    if (!parent->world()->reserve_scope(number))
      return refuse("number " + std::to_string(number) + " is that of a group here, or of one that was closed; pass another one");
  }
  return make_communicator(state_->context, std::make_shared<Group>(parent->world(), subgroup_id(parent->id(), number), number,
                                                                    std::move(infos), std::move(local), false));
}

}  // namespace hmc
