// PeerHandshake. The connecting side says hello with its transports' domains; the accepting side answers with its own, names the
// transport that will carry messages and sends that endpoint's address; the connecting side answers with its address; both say
// ready.
#include "comm/session/peer_handshake.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"
#include "hmc/version.h"
#include "progress/address.h"

namespace hmc {
namespace {

// From the first hello to ready; generous, since 64 ranks may share two cores.
constexpr double handshake_seconds = 30;
// Between the refusal of our connection in favour of the other side's and that one's hello.
constexpr double crossing_seconds = 10;

}  // namespace

void PeerHandshake::expect(const ContextId& id, std::vector<std::string> addresses, std::string name) {
  PeerIdentity identity = peer_.identity();
  identity.context_id = id;
  if (identity.name.empty()) identity.name = std::move(name);
  peer_.identify(std::move(identity));
  expected_ = true;
  if (addresses_.empty()) addresses_ = std::move(addresses);
}

void PeerHandshake::connect() {
  peer_.enter(PeerPhase::connecting);
  next_address_ = 0;
  try_next_address(Status(Code::peer_lost, "no address of " + peer_.describe() + " is known; it must connect to us"));
}

void PeerHandshake::try_next_address(const Status& last) {
  if (peer_.phase() != PeerPhase::connecting || peer_.link().channel() != nullptr) return;
  if (next_address_ >= addresses_.size()) {
    if (addresses_.empty()) return;  // it must come to us; the caller's deadline bounds the wait
    const std::string why = peer_.describe() + " cannot be reached: " + std::string(last.message());
    return peer_.fail(Status(Code::peer_lost, why, last.native()));
  }
  const std::string address = addresses_[next_address_++];
  // A stopped process of this host is not lost: the waiter's deadline bounds the wait.
  const Deadline deadline = unix_path(address).empty() ? Deadline::after_seconds(handshake_seconds) : Deadline::never();
  give_up_ = peer_.impl().joins().control().connect(
      address, deadline, [this, keep = peer_.shared_from_this(), address](Result<std::unique_ptr<Channel>> channel) {
        on_channel(address, std::move(channel));
      });
}

void PeerHandshake::on_channel(const std::string& address, Result<std::unique_ptr<Channel>> channel) {
  // Met in the meantime; ours is dropped unsaid.
  if (peer_.phase() != PeerPhase::connecting || peer_.link().channel() != nullptr) return;
  if (!channel.ok()) return try_next_address(channel.status());
  const PeerIdentity& found = (*channel)->identity();
  if (found.context_id != peer_.identity().context_id) {
    return try_next_address(Status(Code::peer_lost, "at " + address + " answers another Context (" + found.name +
                                                        "): the process was restarted or the address is somebody else's"));
  }
  attach_outgoing(std::move(*channel));
}

wire::Hello PeerHandshake::own_hello(std::string choice) const {
  wire::Hello hello;
  hello.version = wire_version;
  hello.session = session_;
  hello.choice = std::move(choice);
  for (const auto& slot : peer_.impl().transports()) {
    if (!slot->transport || !slot->capabilities.available || slot->self_only || hello.transports.size() >= wire::max_transports)
      continue;
    hello.transports.push_back({slot->name, slot->domain});
  }
  hello.devices.emplace_back("cpu");
  return hello;
}

void PeerHandshake::start_timer() {
  if (peer_.identity().same_host) return timer_.stop();  // it may be stopped, which does not end it
  timer_.start(Deadline::after_seconds(handshake_seconds),
               [this] { peer_.fail(Status(Code::timeout, peer_.describe() + " did not finish the handshake")); });
}

void PeerHandshake::attach_outgoing(std::unique_ptr<Channel> channel) {
  peer_.enter(PeerPhase::connecting);
  peer_.link().attach(std::move(channel));
  outgoing_ = true;
  greeted_ = false;
  accepting_ = false;
  start_timer();
  if (const Status sent = peer_.send_control(wire::hello, encode(own_hello({}))); !sent.ok()) peer_.fail(sent);
}

void PeerHandshake::attach_incoming(std::unique_ptr<Channel> channel, const wire::Hello& hello) {
  peer_.enter(PeerPhase::connecting);
  peer_.link().attach(std::move(channel));
  outgoing_ = false;
  greeted_ = true;
  accepting_ = true;
  if (!take_hello(hello)) return;
  start_timer();
  choose_message_transport();
}

void PeerHandshake::drop_outgoing() {
  peer_.link().refuse();
  outgoing_ = false;
  timer_.stop();
}

void PeerHandshake::on_refused() {
  if (!outgoing_ || greeted_ || peer_.phase() != PeerPhase::connecting) return peer_.broken("an unexpected refusal");
  drop_outgoing();
  timer_.start(Deadline::after_seconds(crossing_seconds), [this] {
    peer_.fail(Status(Code::peer_lost, peer_.describe() + " refused this connection in favour of its own, which never came"));
  });
}

bool PeerHandshake::take_hello(const wire::Hello& hello) {
  if (hello.version != wire_version) {
    peer_.fail(Status(Code::protocol, peer_.describe() + " speaks wire version " + std::to_string(hello.version) +
                                          ", this library version " + std::to_string(wire_version) +
                                          ": use one HMC version on both sides"));
    return false;
  }
  remote_session_ = hello.session;
  peer_.routes().offer(hello.transports);
  return true;
}

// Connecting side: the other one has answered.
void PeerHandshake::on_reply(const wire::Hello& hello) {
  if (greeted_) return peer_.broken("a second hello");
  greeted_ = true;
  if (!take_hello(hello)) return;
  if (hello.choice.empty()) {
    peer_.routes().rank(Device::cpu(), Device::cpu(), 0, tried_);
    peer_.fail(no_transport());
  }
}

// Accepting side: the best transport that has not failed yet. The first call also answers the hello.
void PeerHandshake::choose_message_transport() {
  bool unanswered = peer_.connections().all().empty();
  std::vector<std::string> rejected;
  for (const auto& candidate : peer_.routes().rank(Device::cpu(), Device::cpu(), 0, rejected)) {
    if (peer_.connections().find(candidate.transport->name) != nullptr) continue;  // failed before
    if (unanswered && !peer_.send_control(wire::hello, encode(own_hello(candidate.transport->name))).ok()) break;
    unanswered = false;
    EndpointSlot* slot = peer_.connections().open(*candidate.transport, 0);
    if (peer_.phase() != PeerPhase::connecting) return;
    if (slot->state != EndpointSlot::State::failed) return peer_.messages().attach(*slot);
  }
  if (unanswered) static_cast<void>(peer_.send_control(wire::hello, encode(own_hello({}))));
  tried_.insert(tried_.end(), rejected.begin(), rejected.end());
  if (peer_.link().channel() != nullptr) peer_.link().channel()->close();
  peer_.fail(no_transport());
}

void PeerHandshake::join_self() {
  PeerIdentity identity;
  identity.context_id = peer_.impl().id();
  identity.name = peer_.impl().options().name;
  identity.address = "self";
  identity.same_host = true;
  identity.epoch = session_;
  peer_.identify(std::move(identity));
  peer_.enter(PeerPhase::connecting);
  std::vector<wire::Hello::TransportDomain> own;
  for (const auto& slot : peer_.impl().transports()) own.push_back({slot->name, slot->domain});
  peer_.routes().offer(std::move(own));
  std::vector<std::string> rejected;
  for (const auto& candidate : peer_.routes().rank(Device::cpu(), Device::cpu(), 0, rejected)) {
    EndpointSlot* slot = peer_.connections().open(*candidate.transport, 0);
    if (slot->state == EndpointSlot::State::failed) continue;
    peer_.messages().attach(*slot);
    peer_.connections().connect_self(*slot);
    if (slot->state != EndpointSlot::State::failed) return;
  }
  std::string message = "no transport moves memory within this Context:";
  for (const auto& reason : rejected) message += "\n  " + reason;
  for (const auto& reason : tried_) message += "\n  " + reason;
  peer_.fail(Status(Code::unsupported, std::move(message)));
}

void PeerHandshake::on_slot_failed(const EndpointSlot& slot) {
  const std::string& name = slot.transport().name;
  const std::string reason(slot.failure.message());
  tried_.push_back(name + ": failed (" + reason + ")");
  // Of a peer that is dying no transport can be used: the end of its channel tells.
  const bool may_be_lost = slot.failure.code() == Code::peer_lost;
  log(may_be_lost ? LogLevel::info : LogLevel::warning,
      name + " cannot be used with " + peer_.describe() + " (" + reason + "); the next transport takes its place");
  if (peer_.messages().detach(slot) && accepting_) choose_message_transport();
}

Status PeerHandshake::no_transport() const {
  std::string message = "no transport serves both this Context and " + peer_.describe() + ":";
  for (const auto& reason : tried_) message += "\n  " + reason;
  return Status(Code::unsupported, std::move(message));
}

void PeerHandshake::complete() {
  if (peer_.phase() != PeerPhase::connecting) return;
  peer_.enter(PeerPhase::ready);
  peer_.messages().begin();
  end({});
  if (peer_.phase() != PeerPhase::ready) return;
  if (!peer_.is_self()) peer_.impl().peers().on_ready(peer_, !outgoing_);
  peer_.posts().pump();
  peer_.impl().engine()->wake_waiters();
}

// A peer may never come, while any number of waits for it end.
void PeerHandshake::when_over(Action action, PeerState::ActionOwner owner) {
  if (actions_.size() >= sweep_at_) {
    std::erase_if(actions_, [](const OwnedAction& each) { return each.expired(); });
    sweep_at_ = std::max<std::size_t>(64, actions_.size() * 2);
  }
  actions_.push_back({std::move(action), std::move(owner)});
}

void PeerHandshake::end(const Status& outcome) {
  timer_.stop();
  if (const auto give_up = std::exchange(give_up_, nullptr)) give_up();
  for (auto& action : std::exchange(actions_, {})) {
    if (!action.expired()) action.run(outcome);
  }
}

}  // namespace hmc
