// CommunicatorState: what is behind Communicator and Member handles.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "collective/call.h"
#include "collective/group.h"
#include "hmc/communicator.h"

namespace hmc {

// A Communicator's state holds its local Members, and those hold a state of their own (without Members), so that handles of either
// kind keep the group and nothing keeps itself. The group is left when the last handle is gone. Everything that works in the
// background holds the Group only: handles, whose end may close the Context, end on the threads of those who hold them.
class CommunicatorState {
 public:
  // The state behind Members; leaves `group` at its end.
  CommunicatorState(Context context_handle, std::shared_ptr<Group> joined)
      : context(std::move(context_handle)), group(std::move(joined)) {}
  // The state behind a Communicator.
  explicit CommunicatorState(const std::shared_ptr<CommunicatorState>& members);
  ~CommunicatorState();
  CommunicatorState(const CommunicatorState&) = delete;
  CommunicatorState& operator=(const CommunicatorState&) = delete;

  const Context context;
  const std::shared_ptr<Group> group;
  std::vector<Member> local;  // constant once made

 private:
  bool of_members_ = true;
};

// A Communicator over `group`, which has been joined.
Communicator communicator_of(Context context, const std::shared_ptr<Group>& group);
// A Communicator over `group`, which it joins.
Communicator make_communicator(Context context, const std::shared_ptr<Group>& group);

// invalid_argument: `what` ("rank", "destination") `rank` is none of the group's. Says how a job of several is started where the
// whole job is this process, which is what forgetting the launcher looks like.
Status no_such_rank(const char* what, int rank, const Group& group);

// Where each local Member's entry is in `named`, by rank. Errors: invalid_argument unless each of them is named once, and no other.
Result<std::vector<std::size_t>> each_local_once(const Communicator& communicator, std::string_view what,
                                                 std::span<const Member> named);
template <class Entry>
Result<std::vector<std::size_t>> each_local_once(const Communicator& communicator, std::string_view what,
                                                 std::span<const Entry> entries) {
  std::vector<Member> named;
  for (const Entry& entry : entries) named.push_back(entry.member);
  return each_local_once(communicator, what, std::span<const Member>(named));
}

// One byte string per rank, contributed by each of this process's `ranks`: mine[i] of ranks[i]. Collective.
Result<std::vector<Bytes>> gather_bytes(const std::shared_ptr<Group>& group, std::span<const std::uint32_t> ranks,
                                        std::vector<Bytes> mine, CallKind what, Deadline deadline);

inline constexpr std::size_t max_exchange_bytes = 64 << 10;

}  // namespace hmc
