// Communicator::invite, grow and join: newcomers come to the ranks of a Communicator.
#include <memory>
#include <string>
#include <utility>

#include "collective/agree.h"
#include "collective/communicator_state.h"
#include "collective/entering.h"
#include "collective/interruption.h"
#include "collective/invitation.h"
#include "collective/member_calls.h"
#include "collective/rendezvous.h"
#include "collective/share_memory.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

// Once `growing` is over. The Agreement has the caller's deadline.
Result<Communicator> finish(const Context& context, Growing& growing, Deadline deadline) {
  std::shared_ptr<Group> whole;
  {
    const auto lock = context.state()->engine()->lock();
    if (!growing.failure().ok()) return growing.failure();
    whole = growing.take();
    growing.shrinking()->agreement().begin();
  }
  HMC_ASSIGN(const auto agreed, agree(*whole, *growing.shrinking(), Agreed::whole, deadline));
  Communicator grown = communicator_of(context, agreed);
  HMC_TRY(share_memory_of_new(agreed, deadline));
  return grown;
}

// A process on the way into a group. No lock held.
class Newcomer {
 public:
  Newcomer(Context context, job::Registration own, Deadline deadline)
      : context_(std::move(context)),
        deadline_(deadline),
        world_(std::make_shared<World>(*context_.state(), std::move(own), std::nullopt)) {}

  Result<Communicator> join(const Invitation& invitation, const std::string& address) {
    World::attach(world_);
    const auto engine = world_->engine();
    auto peer = context_.connect(address, deadline_);
    if (!peer) return peer.status().with_context(invitation.name + ", which sent the invitation");
    std::shared_ptr<Growing> growing;
    {
      const auto lock = engine->lock();
      growing = world_->growths().apply(peer->state(), invitation.ticket, wait_ms(deadline_));
    }
    const auto done = [&growing] { return growing->over(); };
    if (!engine->drive(deadline_, done)) {
      const auto lock = engine->lock();
      world_->growths().give_up(*growing, ended_early("this process", world_->growths().awaited(*growing)));
    }
    return finish(context_, *growing, deadline_);
  }

 private:
  Context context_;
  const Deadline deadline_;
  std::shared_ptr<World> world_;
};

// What `options` ask for, plus where the processes of the group must be able to come from.
Result<ContextOptions> context_options(const JoinOptions& options, const std::string& address) {
  ContextOptions context = options.context;
  const bool has_tcp = std::ranges::any_of(context.listen, [](const auto& at) { return at.starts_with("tcp://"); });
  if (has_tcp || !address.starts_with("tcp://")) return context;
  HMC_ASSIGN(const HostPort meeting, parse_tcp(address));
  context.listen.push_back(listen_address_for({meeting.host, "0"}));
  return context;
}

// The one by which all of the group can be reached: beyond the host if the one who invites listens there.
Result<std::string> meeting_address(const Invitation& invitation) {
  const auto by_tcp = [](const std::string& address) { return address.starts_with("tcp://"); };
  const auto tcp = std::ranges::find_if(invitation.addresses, by_tcp);
  if (tcp != invitation.addresses.end()) return *tcp;
  if (may_be_one_kernel(invitation.kernel, kernel_id())) return invitation.addresses.front();
  return Status(Code::invalid_argument, "the invitation of " + invitation.name +
                                            " holds on its own host only: form the job at a rendezvous of \"tcp://host:port\", or "
                                            "with listen=\"tcp://[::]:port\"");
}

}  // namespace

Result<std::string> Communicator::invite(int processes) const {
  HMC_TRY(check(*this));
  const auto& group = state_->group;
  if (processes < 1 || static_cast<std::uint32_t>(processes) > max_processes)
    return Status(Code::invalid_argument,
                  "invite: 1 to " + std::to_string(max_processes) + " processes, not " + std::to_string(processes));
  if (!group->rank(0).peer->is_self()) {
    return Status(Code::invalid_argument, "invite: " + group->describe(group->local().front()) +
                                              " is not rank 0, which invites; it can " + "send the invitation to other ranks");
  }
  HMC_TRY(group->open());
  const job::Registration& own = group->world()->own();
  const auto lock = group->engine()->lock();
  HMC_TRY(group->open());
  return Invitation{group->world()->growths().invite(*group, static_cast<std::uint32_t>(processes)), own.name, own.kernel,
                    own.addresses}
      .str();
}

Result<Communicator> Communicator::grow(Deadline deadline) const {
  HMC_TRY(check(*this));
  const auto& group = state_->group;
  const auto engine = group->engine();
  Growths& growths = group->world()->growths();
  std::shared_ptr<Growing> growing;
  {
    const auto lock = engine->lock();
    growing = growths.begin(*group, wait_ms(deadline));
  }
  if (!engine->drive(deadline, [&growing] { return growing->over(); })) {
    const auto lock = engine->lock();
    growths.give_up(*growing, ended_early(group->describe(group->local().front()), growths.awaited(*growing)));
  }
  auto grown = finish(state_->context, *growing, deadline);
  if (!grown) return grown.status().with_context("grow");
  return grown;
}

Result<Communicator> Communicator::join(std::string_view invitation, const JoinOptions& options) {
  if (!(options.timeout_seconds >= 0)) return Status(Code::invalid_argument, "timeout_seconds must not be negative");
  const Deadline deadline = Deadline::after_seconds(options.timeout_seconds);
  HMC_ASSIGN(const Invitation parsed, Invitation::parse(invitation));
  const std::vector<Device> devices = options.devices.empty() ? std::vector<Device>{Device::cpu()} : options.devices;
  HMC_TRY(check_devices(devices));
  HMC_ASSIGN(const std::string address, meeting_address(parsed));
  HMC_ASSIGN(const ContextOptions with, context_options(options, address));
  auto context = Context::create(with);
  if (!context) return context.status().with_context("join");
  auto communicator = Newcomer(*context, registration(*context, devices, address, false, deadline), deadline).join(parsed, address);
  if (communicator) return communicator;
  static_cast<void>(context->close(closing_deadline(deadline)));
  return communicator.status().with_context("join");
}

}  // namespace hmc
