#include <algorithm>
#include <utility>

#include "collective/communicator_state.h"
#include "collective/execute.h"
#include "hmc/communicator.h"

namespace hmc {

CommunicatorState::CommunicatorState(const std::shared_ptr<CommunicatorState>& members)
    : context(members->context), group(members->group), of_members_(false) {
  for (const std::uint32_t rank : group->local()) local.emplace_back(members, static_cast<int>(rank));
}

CommunicatorState::~CommunicatorState() {
  if (of_members_) group->leave();
}

Communicator make_communicator(Context context, const std::shared_ptr<Group>& group) {
  group->join();
  return communicator_of(std::move(context), group);
}

Communicator communicator_of(Context context, const std::shared_ptr<Group>& group) {
  return Communicator(std::make_shared<CommunicatorState>(std::make_shared<CommunicatorState>(std::move(context), group)));
}

namespace {

Status empty_status() {
  return {Code::invalid_argument,
          "the Communicator is empty: this process is in none of the groups that split() made, or init() was not called"};
}

}  // namespace

Communicator::Communicator(std::shared_ptr<CommunicatorState> state) noexcept : state_(std::move(state)) {}

int Communicator::size() const noexcept { return state_ ? static_cast<int>(state_->group->size()) : 0; }

const std::vector<Member>& Communicator::local() const noexcept {
  static const std::vector<Member> none;
  return state_ ? state_->local : none;
}

Result<Member> Communicator::self() const {
  if (!state_) return empty_status();
  if (state_->local.size() == 1) return state_->local.front();
  return Status(Code::invalid_argument, "this process has " + std::to_string(state_->local.size()) +
                                            " Members in the Communicator; make the call on one of local()");
}

Status no_such_rank(const char* what, int rank, const Group& group) {
  std::string message =
      std::string(what) + " " + std::to_string(rank) + " is outside this Communicator of size " + std::to_string(group.size());
  if (group.size() == 1 && group.scope() == world_scope)
    message += "; start a job of several by `hmc run -n N script.py`, torchrun, mpirun or srun";
  return {Code::invalid_argument, std::move(message)};
}

Result<std::vector<std::size_t>> each_local_once(const Communicator& communicator, std::string_view what,
                                                 std::span<const Member> named) {
  const auto& group = communicator.state()->group;
  const auto& local = group->local();
  constexpr std::size_t nowhere = ~std::size_t{0};
  std::vector<std::size_t> order(local.size(), nowhere);
  const auto refuse = [&](const std::string& why) { return Status(Code::invalid_argument, std::string(what) + ": " + why); };
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (!named[i].valid() || named[i].state()->group != group) return refuse("a Member is empty or of another Communicator");
    const auto rank = static_cast<std::uint32_t>(named[i].rank());
    const auto at = std::ranges::find(local, rank);
    if (at == local.end()) return refuse("rank " + std::to_string(rank) + " is no Member of this process");
    std::size_t& place = order[static_cast<std::size_t>(at - local.begin())];
    if (place != nowhere) return refuse("rank " + std::to_string(rank) + " is there twice");
    place = i;
  }
  if (std::ranges::find(order, nowhere) == order.end()) return order;
  return refuse("every one of the " + std::to_string(local.size()) + " local Members joins exactly once; " +
                std::to_string(named.size()) + " were given");
}

Context Communicator::context() const { return state_ ? state_->context : Context(); }

namespace {

Status check_rank(const Group& group, int rank) {
  if (rank >= 0 && static_cast<std::uint32_t>(rank) < group.size()) return {};
  return no_such_rank("rank", rank, group);
}

}  // namespace

Result<Peer> Communicator::peer(int rank, Deadline deadline) const {
  if (!state_) return empty_status();
  const Group& group = *state_->group;
  HMC_TRY(group.open());
  HMC_TRY(check_rank(group, rank));
  const auto peer = group.rank(static_cast<std::uint32_t>(rank)).peer;
  struct Outcome {
    bool done = false;
    Status status;
  };
  const auto outcome = std::make_shared<Outcome>();
  const auto engine = group.engine();
  {
    const auto lock = engine->lock();
    const auto on_ready = [weak = std::weak_ptr(outcome), engine](const Status& status) {
      const auto waiting = weak.lock();
      if (!waiting) return;
      *waiting = {true, status};
      engine->wake_waiters();
    };
    peer->when_ready(on_ready, WhenIdle::connect, outcome);
  }
  if (!engine->drive(deadline, [&] { return outcome->done || !group.open().ok(); })) {
    return Status(Code::timeout, group.describe(static_cast<std::uint32_t>(rank)) + " could not be connected in time");
  }
  const auto lock = engine->lock();
  if (!outcome->done) HMC_TRY(group.open());
  HMC_TRY(outcome->status);
  return Peer(peer);
}

Device Communicator::device(int rank) const {
  if (!state_ || !check_rank(*state_->group, rank).ok()) return Device::cpu();
  return state_->group->rank(static_cast<std::uint32_t>(rank)).device;
}

std::vector<int> Communicator::lost() const {
  std::vector<int> ranks;
  if (!state_ || state_->group->engine()->forked()) return ranks;
  const Group& group = *state_->group;
  const auto lock = group.engine()->lock();
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const RankInfo& rank = group.rank(r);
    if (group.world()->processes()[rank.process].lost || rank.peer->phase() == PeerPhase::lost)
      ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

Result<ConnBuffer> Communicator::buffer(std::size_t bytes, Device device) const {
  if (!state_) return empty_status();
  HMC_TRY(state_->group->open());
  return state_->context.buffer(bytes, device);
}

Result<ConnBuffer> Communicator::register_memory(const Memory& memory, Access access) const {
  if (!state_) return empty_status();
  HMC_TRY(state_->group->open());
  return state_->context.register_memory(memory, access);
}

Status Communicator::close(Deadline deadline) const {
  if (!state_) return {};
  const Group& group = *state_->group;
  state_->group->leave(true);
  if (group.engine()->forked()) return state_->context.close(deadline);
  {
    const auto lock = group.engine()->lock();
    if (!group.world()->ends_context(group)) return {};
  }
  return state_->context.close(deadline);
}

}  // namespace hmc
