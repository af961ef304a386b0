// PeerImpl: what it owns, from one end of its life to the other; dispatch of what the peer sends; posting.
//
// Memory that the peer's process accesses by itself (LocalRegion::peer_moves) outlives end(): operations and imports on it end when
// the peer has ended its side of the control channel, which it does after its endpoints, or when its process is dead.
#include "comm/peer_impl.h"

#include "base/log.h"
#include "comm/connection/signals.h"
#include "comm/context_impl.h"

namespace hmc {

PeerImpl::PeerImpl(const std::shared_ptr<ContextImpl>& context, std::uint64_t session, bool self)
    : owner_(self ? nullptr : context),
      context_(*context),
      session_(session),
      self_(self),
      handshake_(*this, *context_.engine()),
      closing_(*this, *context_.engine()),
      link_(*this, *context_.engine()),
      messages_(*this, *context_.engine()) {
  notify_slot_ = context_.notify_table().add_peer();
  if (!self_) notify_slot_->grant = [this](std::uint64_t total) { posts_.grant(total); };
}

PeerImpl::~PeerImpl() {
  if (lane == nullptr || self_) return;
  context_.toss([&messenger = context_.messenger(), name = static_cast<const PeerState*>(this)] { messenger.drop_departed(name); });
}

ContextState& PeerImpl::context() noexcept { return context_; }

std::string PeerImpl::describe() const {
  if (self_) return "this Context";
  std::string text = "peer " + (identity_.name.empty() ? std::string("?") : identity_.name);
  if (!identity_.address.empty()) text += " (" + identity_.address + ")";
  if (!job_ranks().empty()) text = job_ranks() + ", " + text;
  return text;
}

// ---- its beginning ----

void PeerImpl::become_self() {
  identity_.context_id = context_.id();
  identity_.name = context_.options().name;
  identity_.address = "self";
  identity_.same_host = true;
  identity_.epoch = session_;
  handshake_.join_self();
}

void PeerImpl::expect(const ContextId& id, std::vector<std::string> addresses, std::string name) {
  identity_.context_id = id;
  if (identity_.name.empty()) identity_.name = std::move(name);
  handshake_.expect(std::move(addresses));
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
      handshake_.when_over(std::move(action));
      handshake_.connect();
      return;
    case PeerPhase::connecting:
      handshake_.when_over(std::move(action));
      return;
  }
}

void PeerImpl::adopt(std::unique_ptr<Channel> channel) {
  phase_ = PeerPhase::connecting;
  identity_ = channel->identity();
  link_.attach(std::move(channel), *this);
}

// ---- what the peer sends ----

void PeerImpl::on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  const auto keep = shared_from_this();
  if (phase_ != PeerPhase::connecting && !carries()) return;
  if (type == wire::duplicate) return handshake_.on_refused();
  if (type == wire::hello) {
    const auto hello = wire::decode_hello(payload);
    if (!hello) return broken("a malformed hello");
    return handshake_.on_reply(*hello);
  }
  if (!handshake_.greeted()) return broken("a message before its hello");
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
      return closing_.on_bye_ack();
    default:
      break;
  }
  broken("a malformed control message of type " + std::to_string(type));
}

void PeerImpl::on_signal(EndpointSlot& slot, ByteSpan signal) {
  if (slot.state == EndpointSlot::State::failed || (phase_ != PeerPhase::connecting && !carries())) return;
  // The other side may know that we are ready before we have read its word.
  if (phase_ == PeerPhase::connecting && messages_.carried_by(slot) && slot.connected.here) {
    const auto keep = shared_from_this();
    connections_.on_connected_there(slot);
    if (phase_ != PeerPhase::ready) return;
  }
  const std::uint8_t kind = signal.empty() ? 0 : signal_kind(signal[0]);
  const bool attached = !signal.empty() && (static_cast<std::uint8_t>(signal[0]) & attached_bit) != 0;
  if (slot.transport().capabilities.breaks && !attached && kind != static_cast<std::uint8_t>(NotifyKind::received))
    messages_.count_received(signal.size());
  if (kind >= messaging_kinds_first && kind <= messaging_kinds_last) {
    context_.messenger().on_signal(*this, signal);
    return;
  }
  const auto keep = shared_from_this();
  const auto m = decode_notify_signal(signal);
  if (!m) return broken("a malformed signal of kind " + std::to_string(kind));
  switch (m->kind) {
    case NotifyKind::counted:
      if (!notify_slot_->raise(m->envelope, m->number)) {
        return broken("more than " + std::to_string(max_counted_ids) + " different notification ids that nobody has waited for");
      }
      break;
    case NotifyKind::payload:
      if (attached) slot.credit_in += notify_cost(m->payload.size());
      if (!context_.notify_table().queue(*notify_slot_, m->envelope, m->payload))
        return broken("more payload notifications than its credit");
      break;
    case NotifyKind::credit:
      if (!notify_slot_->acknowledge(m->number)) return broken("an impossible notification credit");
      if (!posts_.empty()) context_.needs_pump(*this);
      break;
    case NotifyKind::received:
      if (!messages_.on_acknowledged(m->number)) return broken("an acknowledgement of what was never sent");
      if (!posts_.empty()) context_.needs_pump(*this);
      break;
    case NotifyKind::bye:
      closing_.on_bye();
      break;
  }
  context_.engine()->wake_waiters();
}

void PeerImpl::broken(std::string_view what) {
  const Status reason(Code::protocol, describe() + " broke the protocol: it sent " + std::string(what));
  log(LogLevel::warning, reason.message());
  end(reason, PeerPhase::lost);
}

// ---- what goes to the peer ----

Status PeerImpl::send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (link_.channel() == nullptr) {
    if (phase_ == PeerPhase::lost || phase_ == PeerPhase::closed) return failure_;
    return Status(Code::would_block, describe() + " is not connected yet");
  }
  return link_.channel()->send(type, payload, std::move(fds));
}

bool PeerImpl::pump() {
  if (pumping_ || !carries()) return false;
  const auto keep = shared_from_this();
  pumping_ = true;
  bool moved = messages_.pump();
  bool blocked = false;
  if (posts_.post(blocked)) moved = true;
  pumping_ = false;
  const bool owes = messages_.owes() || (posts_.owes_credit() && messages_.has_connection());
  if (carries() && (owes || blocked)) context_.needs_pump(*this);
  closing_.advance();
  return moved;
}

void PeerImpl::operation_done(EndpointSlot& slot) {
  --slot.operations;
  if (imports_.withdrawing()) [[unlikely]]
    imports_.settle_withdrawn();
  const bool waited = !posts_.passable() && phase_ == PeerPhase::ready;
  if (slot.operations == 0 && (waited || closing_.in_progress())) context_.needs_pump(*this);
}

// ---- its end ----

void PeerImpl::stop_posting(const Status& reason) {
  phase_ = PeerPhase::closed;
  failure_ = reason;
  routes_.changed();
  context_.peer_ended(*this);
  imports_.end_requests(reason);
  notify_slot_->end(reason);
  context_.notify_table().wake_waiters();
  posts_.abandon_unsent(reason);
  context_.messenger().on_peer_closing(*this, reason);
}

bool PeerImpl::holds() const {
  if (self_ || !identity_.same_host) return false;
  return grants_.accessible() || context_.messenger().holds(*this);
}

std::string PeerImpl::unfinished() const {
  if (holds()) return describe() + " has not let go of memory of this process, which it may still read and write";
  if (closing_.loses()) return "what was posted to " + describe() + " has not all arrived, and what has not is lost";
  return {};
}

void PeerImpl::on_closed(const Status& reason) {
  const auto keep = shared_from_this();
  link_.on_closed(reason);
  if (closing_.torn_down()) {
    link_.drop();  // the peer has ended its side, or our goodbye is out
  } else if (closing_.complete_with_channel(reason.code() == Code::closed)) {
    end(failure_, PeerPhase::closed);
  } else if (reason.code() == Code::closed && phase_ == PeerPhase::connecting && handshake_.has_tried()) {
    end(handshake_.no_transport(), PeerPhase::lost);  // it gave up for the same reason
  } else if (reason.code() == Code::closed) {
    end(Status(Code::closed, describe() + " said goodbye"), PeerPhase::closed);
  } else {
    end(Status(reason.code(), describe() + ": " + std::string(reason.message()), reason.native()), PeerPhase::lost);
  }
}

void PeerImpl::end(const Status& why, PeerPhase phase) {
  if (!closing_.end()) return;
  const auto keep = std::static_pointer_cast<PeerImpl>(shared_from_this());
  const Status reason = why;
  phase_ = phase;
  failure_ = reason;
  routes_.changed();
  messages_.end();
  connections_.stop_retries();
  context_.peer_ended(*this);
  posts_.abandon(reason);
  imports_.end_requests(reason);
  liveness_.end();
  notify_slot_->end(reason);
  context_.notify_table().wake_waiters();
  handshake_.end(reason);
  // We may be inside a callback of the channel or of an endpoint: they go once it has returned.
  context_.engine()->defer([keep] { keep->tear_down(); });
  context_.engine()->wake_waiters();
}

void PeerImpl::tear_down() {
  if (!closing_.tear_down()) return;
  const auto keep = shared_from_this();
  liveness_.end();
  // Endpoints first: their end completes what is under way, after which nothing touches regions or buffers.
  connections_.tear_down(failure_);
  works_.abandon(failure_);
  imports_.tear_down(failure_);
  context_.messenger().on_peer_gone(*this, failure_);
  context_.notify_table().remove_peer(notify_slot_, failure_);
  grants_.drop(false);
  routes_.clear();
  // Only now, after the endpoints: the end of this side of the channel tells the peer that nothing here touches its memory.
  link_.end(phase_ == PeerPhase::closed);
  context_.peer_torn_down(*this, failure_);
  context_.engine()->wake_waiters();
}

void PeerImpl::tear_down_now(std::vector<std::shared_ptr<const void>>& kept) {
  if (!closing_.ended()) {
    const Status reason = phase_ == PeerPhase::closed ? failure_ : Status(Code::closed, "the Context is closed");
    end(reason, PeerPhase::closed);
  }
  tear_down();
  if (holds()) {
    grants_.keep(kept);
    context_.messenger().abandon(*this, kept);
  }
  link_.drop_now();
}

void PeerImpl::let_go() {
  context_.messenger().on_peer_let_go(*this);
  grants_.drop(true);
}

}  // namespace hmc
