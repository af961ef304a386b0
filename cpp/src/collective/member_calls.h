// What the collectives of Member and Communicator have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "collective/choose.h"
#include "collective/communicator_state.h"
#include "collective/execute.h"
#include "collective/planned_call.h"
#include "hmc/communicator.h"
#include "native/rank_communicator.h"

namespace hmc {

using Started = Result<std::shared_ptr<CollectiveWork>>;

// Errors: invalid_argument (an empty handle), closed.
Status check(const std::shared_ptr<CommunicatorState>& state);
Status check(const Communicator& communicator);
[[nodiscard]] inline std::uint32_t rank_in(const Member& member) noexcept { return static_cast<std::uint32_t>(member.rank()); }
// Errors: invalid_argument (no such rank).
Status check_root(const Group& group, std::string_view call, int root);
// The two buffers of one call, `in` beginning where byte `in_at` of `out` does if the call is in place; none: it never is.
// Errors: invalid_argument (bytes without an address, an overlap that is not in place).
Status check_memory(std::string_view call, const MemoryView& out, const MemoryView& in, std::optional<std::uint64_t> in_at);
[[nodiscard]] bool in_place(const MemoryView& out, const MemoryView& in, std::uint64_t in_at) noexcept;

// The algorithm that was named for a call that hands bytes on. Errors: of named_algorithm().
Result<Algorithm> spread_algorithm(Group& group, const EqualCall& call, std::string_view name);
// Whether such a call of `bytes`, as EqualCall has them, may go through memory that the group's ranks share. Alike on every rank.
[[nodiscard]] bool goes_shared(Group& group, CallKind kind, std::uint64_t bytes, Algorithm named) noexcept;
// `call`, where it is one of the library's, which is named, and the rank's device takes part in it.
std::optional<native::Call> by_library(Group& group, std::uint32_t rank, const Device& device, std::optional<native::Call> call);

// Whether each of the layout's blocks lies in `view`. `which`: "input" or "output", for errors.
Status check_layout(std::string_view call, std::string_view which, const Member::Layout& layout, const MemoryView& view,
                    std::size_t size);
// Whether all blocks have `bytes`, one after the other.
[[nodiscard]] bool are_packed(const Member::Layout& layout, std::uint64_t bytes) noexcept;
// Whether no two blocks of a layout that is written overlap.
Status check_disjoint(std::string_view call, const Member::Layout& layout);

// One Member's share of a collective, checked and planned, not started.
using Share = CollectiveCall;
// How a call that goes_shared() does so: as `way` says, and by the device's kernel if HMC chooses that for the `output`.
void plan_shared(Group& group, std::uint32_t rank, CallKind kind, Algorithm named, const Device& output, fused::Way way,
                 PlannedCall& call);
// `share` goes so, as far as its memory and its rank's device allow.
void share_spread(Share& share, const std::shared_ptr<const PlannedCall>& call);
// What by_library() returned, once `share` says whether the ranks share memory for it.
void set_library(Share& share, Algorithm named, const std::optional<native::Call>& call);
// Errors besides those of starting it: invalid_argument, in a batch.
Started start(Result<Share>&& share);
// Carries it out; a small reduction on one host may be over without a Work. In a batch: adds it to that.
Status run(Result<Share>&& share, Deadline deadline);
// Those of all local Members.
Status run_shares(std::vector<Share> shares, Deadline deadline);
Result<Work> as_work(Started started);
// The shares of every local Member, by `share_of(entry)`: nothing is started unless all are well.
template <class Entry, class ShareOf>
Status run_all(const Communicator& communicator, std::string_view call, std::span<const Entry> entries, Deadline deadline,
               const ShareOf& share_of) {
  HMC_TRY(check(communicator));
  HMC_TRY(each_local_once(communicator, call, entries).status());
  std::vector<Share> shares;
  for (const Entry& entry : entries) {
    HMC_ASSIGN(auto share, share_of(entry));
    shares.push_back(std::move(share));
  }
  return run_shares(std::move(shares), deadline);
}

}  // namespace hmc
