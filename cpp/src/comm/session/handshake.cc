// PeerImpl: joining. The connecting side says hello with its transports' domains; the accepting side answers with its own, names
// the transport that will carry messages and sends that endpoint's address; the connecting side answers with its address; both say
// ready.
#include <unistd.h>

#include "base/log.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"
#include "hmc/version.h"

namespace hmc {
namespace {

// From the first hello to ready; generous, since 64 ranks may share two cores.
constexpr double handshake_seconds = 30;
// Between the refusal of our connection in favour of the other side's and that one's hello.
constexpr double crossing_seconds = 10;

class SilentSink final : public ChannelSink {
  void on_message(MessageType, ByteSpan, std::vector<UniqueFd>) override {}
  void on_closed(const Status&) override {}
};

}  // namespace

void PeerImpl::expect(const ContextId& id, std::vector<std::string> addresses, std::string name) {
  expected_ = true;
  identity_.context_id = id;
  if (identity_.name.empty()) identity_.name = std::move(name);
  if (addresses_.empty()) addresses_ = std::move(addresses);
}

void PeerImpl::when_ready(std::function<void(const Status&)> action) {
  switch (phase_) {
    case PeerPhase::ready:
      action({});
      return;
    case PeerPhase::lost:
    case PeerPhase::closed:
      action(failure_);
      return;
    case PeerPhase::idle:
      ready_actions_.push_back(std::move(action));
      start_connecting();
      return;
    case PeerPhase::connecting:
      ready_actions_.push_back(std::move(action));
      return;
  }
}

void PeerImpl::start_connecting() {
  phase_ = PeerPhase::connecting;
  next_address_ = 0;
  try_next_address(Status(Code::peer_lost, "no address of " + describe() + " is known; it must connect to us"));
}

void PeerImpl::try_next_address(const Status& last) {
  if (phase_ != PeerPhase::connecting || channel_) return;
  if (next_address_ >= addresses_.size()) {
    if (addresses_.empty()) return;  // it must come to us; the caller's deadline bounds the wait
    end(Status(Code::peer_lost, describe() + " cannot be reached: " + std::string(last.message()), last.native()), PeerPhase::lost);
    return;
  }
  const std::string address = addresses_[next_address_++];
  auto self = std::static_pointer_cast<PeerImpl>(shared_from_this());
  context_.joins().control().connect(
      address, Deadline::after_seconds(handshake_seconds), [self, address](Result<std::unique_ptr<Channel>> result) {
        if (self->phase_ != PeerPhase::connecting || self->channel_) return;  // met in the meantime; ours is dropped unsaid
        if (!result.ok()) {
          self->try_next_address(result.status());
          return;
        }
        const PeerIdentity& found = (*result)->identity();
        if (found.context_id != self->identity_.context_id) {
          self->try_next_address(Status(Code::peer_lost, "at " + address + " answers another Context (" + found.name +
                                                             "): the process was restarted or the address is somebody else's"));
          return;
        }
        self->attach_outgoing(std::move(*result));
      });
}

wire::Hello PeerImpl::own_hello(std::string choice) const {
  wire::Hello hello;
  hello.version = wire_version;
  hello.session = session_;
  hello.choice = std::move(choice);
  for (const auto& slot : context_.transports()) {
    if (!slot->transport || !slot->capabilities.available || slot->self_only || hello.transports.size() >= wire::max_transports)
      continue;
    hello.transports.push_back({slot->name, slot->domain});
  }
  hello.devices.emplace_back("cpu");
  return hello;
}

void PeerImpl::attach_outgoing(std::unique_ptr<Channel> channel) {
  phase_ = PeerPhase::connecting;
  channel_ = std::move(channel);
  identity_ = channel_->identity();
  outgoing_ = true;
  greeted_ = false;
  accepting_ = false;
  channel_->set_sink(*this);
  timer_.start(Deadline::after_seconds(handshake_seconds),
               [this] { end(Status(Code::timeout, describe() + " did not finish the handshake"), PeerPhase::lost); });
  if (const Status sent = channel_->send(wire::hello, encode(own_hello({}))); !sent.ok()) end(sent, PeerPhase::lost);
}

void PeerImpl::attach_incoming(std::unique_ptr<Channel> channel, const wire::Hello& hello) {
  phase_ = PeerPhase::connecting;
  channel_ = std::move(channel);
  identity_ = channel_->identity();
  outgoing_ = false;
  greeted_ = true;
  accepting_ = true;
  if (!take_hello(hello)) return;
  channel_->set_sink(*this);
  timer_.start(Deadline::after_seconds(handshake_seconds),
               [this] { end(Status(Code::timeout, describe() + " did not finish the handshake"), PeerPhase::lost); });
  choose_message_transport();
}

void PeerImpl::drop_outgoing() {
  static SilentSink silent;  // stateless: what the refused channel still says is nobody's business
  channel_->set_sink(silent);
  context_.engine()->defer([channel = std::shared_ptr<Channel>(std::move(channel_))] {});
  channel_ = nullptr;
  outgoing_ = false;
  timer_.stop();
}

bool PeerImpl::take_hello(const wire::Hello& hello) {
  if (hello.version != wire_version) {
    end(Status(Code::protocol, describe() + " speaks wire version " + std::to_string(hello.version) + ", this library version " +
                                   std::to_string(wire_version) + ": use one HMC version on both sides"),
        PeerPhase::lost);
    return false;
  }
  remote_session_ = hello.session;
  routes_.offer(hello.transports);
  return true;
}

// Connecting side: the other one has answered.
void PeerImpl::on_hello_reply(const wire::Hello& hello) {
  if (greeted_) return broken("a second hello");
  greeted_ = true;
  if (!take_hello(hello)) return;
  if (hello.choice.empty()) {
    routes_.rank(Device::cpu(), Device::cpu(), 0, tried_);
    end(no_transport(), PeerPhase::lost);
  }
}

// Accepting side: the best transport that has not failed yet. The first call also answers the hello.
void PeerImpl::choose_message_transport() {
  bool unanswered = connections_.all().empty();
  std::vector<std::string> rejected;
  for (const auto& candidate : routes_.rank(Device::cpu(), Device::cpu(), 0, rejected)) {
    if (connections_.find(candidate.transport->name) != nullptr) continue;  // failed before
    if (unanswered && !channel_->send(wire::hello, encode(own_hello(candidate.transport->name))).ok()) break;
    unanswered = false;
    EndpointSlot* slot = connections_.open(*candidate.transport, 0);
    if (phase_ != PeerPhase::connecting) return;
    if (slot->state != EndpointSlot::State::failed) return messages_.attach(*slot);
  }
  if (unanswered) static_cast<void>(channel_->send(wire::hello, encode(own_hello({}))));
  tried_.insert(tried_.end(), rejected.begin(), rejected.end());
  if (channel_) channel_->close();
  end(no_transport(), PeerPhase::lost);
}

void PeerImpl::transport_failed(const EndpointSlot& slot) {
  const std::string& name = slot.transport().name;
  const std::string reason(slot.failure.message());
  tried_.push_back(name + ": failed (" + reason + ")");
  log(LogLevel::warning, name + " cannot be used with " + describe() + " (" + reason + "); the next transport takes its place");
  if (messages_.detach(slot) && accepting_) choose_message_transport();
}

Status PeerImpl::no_transport() const {
  std::string message = "no transport serves both this Context and " + describe() + ":";
  for (const auto& reason : tried_) message += "\n  " + reason;
  return Status(Code::unsupported, std::move(message));
}

void PeerImpl::become_ready() {
  if (phase_ != PeerPhase::connecting) return;
  phase_ = PeerPhase::ready;
  messages_.begin();
  timer_.stop();
  run_ready_actions({});
  if (phase_ != PeerPhase::ready) return;
  if (!self_) {
    joined_ = true;
    context_.peer_ready(*this, !outgoing_);
  }
  pump();
  context_.engine()->wake_waiters();
}

void PeerImpl::run_ready_actions(const Status& status) {
  for (auto& action : std::exchange(ready_actions_, {})) action(status);
}

void PeerImpl::on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  const auto keep = shared_from_this();
  if (phase_ != PeerPhase::connecting && !carries()) return;
  if (type == wire::duplicate) {
    if (!outgoing_ || greeted_ || phase_ != PeerPhase::connecting) return broken("an unexpected refusal");
    // The other side's own connection to us is on its way and wins.
    drop_outgoing();
    timer_.start(Deadline::after_seconds(crossing_seconds), [this] {
      end(Status(Code::peer_lost, describe() + " refused this connection in favour of its own, which never came"), PeerPhase::lost);
    });
    return;
  }
  if (type == wire::hello) {
    const auto hello = wire::decode_hello(payload);
    if (!hello) return broken("a malformed hello");
    return on_hello_reply(*hello);
  }
  if (!greeted_) return broken("a message before its hello");
  if (type >= 200) {
    context_.deliver_control(*this, type, payload);
    return;
  }
  handle(type, payload, std::move(fds));
  context_.engine()->wake_waiters();
}

void PeerImpl::handle(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  switch (type) {
    case wire::address:
      if (const auto m = wire::decode_address(payload)) return connections_.on_address(*m, std::move(fds));
      break;
    case wire::endpoint_ready:
    case wire::endpoint_failed:
      if (const auto m = wire::decode_endpoint_note(payload)) return connections_.on_note(*m, type == wire::endpoint_ready);
      break;
    case wire::stopped:
      if (const auto m = wire::decode_stopped(payload)) return connections_.on_stopped(*m);
      break;
    case wire::messages_by:
      if (const auto m = wire::decode_endpoint_note(payload)) return messages_.on_named(*m);
      break;
    case wire::are_you_alive:
      if (const auto number = wire::decode_request(payload))
        return static_cast<void>(send_control(wire::alive, wire::encode_request(*number)));
      break;
    case wire::alive:
      if (const auto number = wire::decode_request(payload)) {
        if (!liveness_.answer(*number)) broken("an answer to what was not asked");
        return;
      }
      break;
    case wire::import:
      if (const auto m = wire::decode_import(payload)) return grants_.on_import(*m);
      break;
    case wire::imported:
      if (const auto m = wire::decode_answer(payload)) return imports_.on_imported(*m, std::move(fds));
      break;
    case wire::release:
      if (const auto m = wire::decode_request(payload)) return grants_.on_release(*m);
      break;
    case wire::withdraw:
      if (const auto m = wire::decode_request(payload)) return imports_.on_withdraw(*m);
      break;
    case wire::revoke:
      if (const auto m = wire::decode_buffer_name(payload)) return imports_.on_revoke(*m);
      break;
    case wire::revoked:
      if (const auto m = wire::decode_buffer_name(payload)) return grants_.on_revoked(*m);
      break;
    case wire::lookup:
      if (const auto m = wire::decode_lookup(payload)) return grants_.on_lookup(*m);
      break;
    case wire::found:
      if (const auto m = wire::decode_answer(payload)) return imports_.on_found(*m);
      break;
    case wire::lookup_cancel:
      if (const auto m = wire::decode_request(payload)) return grants_.on_lookup_cancel(*m);
      break;
    case wire::bye_ack:
      return on_bye_ack();
    default:
      break;
  }
  broken("a malformed control message of type " + std::to_string(type));
}

void PeerImpl::broken(std::string_view what) {
  const Status reason(Code::protocol, describe() + " broke the protocol: it sent " + std::string(what));
  log(LogLevel::warning, reason.message());
  end(reason, PeerPhase::lost);
}

Status PeerImpl::send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (!channel_) {
    if (phase_ == PeerPhase::lost || phase_ == PeerPhase::closed) return failure_;
    return Status(Code::would_block, describe() + " is not connected yet");
  }
  return channel_->send(type, payload, std::move(fds));
}

}  // namespace hmc
