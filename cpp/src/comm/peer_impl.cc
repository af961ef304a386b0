#include "comm/peer_impl.h"

#include "base/log.h"
#include "comm/context_impl.h"

namespace hmc {

std::string PeerState::describe() const {
  if (self_) return "this Context";
  std::string text = "peer " + (identity_.name.empty() ? std::string("?") : identity_.name);
  if (!identity_.address.empty()) text += " (" + identity_.address + ")";
  if (!job_ranks_.empty()) text = job_ranks_ + ", " + text;
  return text;
}

PeerImpl::PeerImpl(const std::shared_ptr<ContextImpl>& context, std::uint64_t session, bool self)
    : PeerState(self),
      owner_(self ? nullptr : context),
      context_(*context),
      handshake_(*this, *context_.engine(), session),
      closing_(*this, *context_.engine()),
      link_(*this, *context_.engine()),
      messages_(*this, *context_.engine()) {
  notify_slot_ = context_.notifier().table().add_peer();
  notify_slot_->grant = [this](std::uint64_t total) {
    if (!is_self()) return posts_.grant(total);
    static_cast<void>(notify_slot_->acknowledge(total));
    if (!posts_.empty()) context_.peers().pump_soon(*this);
  };
}

PeerImpl::~PeerImpl() {
  if (lane == nullptr || is_self()) return;
  context_.toss([&messenger = context_.messenger(), name = static_cast<const PeerState*>(this)] { messenger.drop_departed(name); });
}

ContextState& PeerImpl::context() noexcept { return context_; }

void PeerImpl::when_ready(std::function<void(const Status&)> action, WhenIdle idle, ActionOwner owner) {
  switch (phase()) {
    case PeerPhase::ready:
      action({});
      return;
    case PeerPhase::lost:
    case PeerPhase::closed:
      action(failure());
      return;
    case PeerPhase::idle:
      handshake_.when_over(std::move(action), std::move(owner));
      if (idle == WhenIdle::connect) handshake_.connect();
      return;
    case PeerPhase::connecting:
      handshake_.when_over(std::move(action), std::move(owner));
      return;
  }
}

Status PeerImpl::send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (link_.channel() == nullptr) {
    if (phase() == PeerPhase::lost || phase() == PeerPhase::closed) return failure();
    return Status(Code::would_block, describe() + " is not connected yet");
  }
  const Status sent = link_.channel()->send(type, payload, std::move(fds));
  if (sent.ok() && type >= wire::first_group_message) closing_.group_message_sent();
  return sent;
}

void PeerImpl::broken(std::string_view what) {
  const Status reason(Code::protocol, describe() + " broke the protocol: it sent " + std::string(what));
  log(LogLevel::warning, reason.message());
  fail(reason);
}

}  // namespace hmc
