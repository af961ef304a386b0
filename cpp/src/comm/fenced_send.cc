// Two-sided sends posted behind a fence: they wait with the peer's one-sided operations until it is released.
#include "comm/context_impl.h"
#include "progress/work_state.h"

namespace hmc {
namespace {

class FencedSend final : public WorkState, public PendingOp {
 public:
  FencedSend(std::shared_ptr<PeerState> peer, std::int64_t tag, const MemoryView& view)
      : WorkState(peer->context().engine()), peer_(std::move(peer)), tag_(tag), view_(view) {}

  Outcome post() override {
    impl().remove_fence();
    auto sent = peer_->context().messenger().isend_locked(peer_, {}, tag_, view_);
    if (!sent.ok()) {
      complete(sent.status());
      return Outcome::posted;
    }
    send_ = *sent;
    const auto keep = std::static_pointer_cast<FencedSend>(shared_from_this());
    send_->on_complete_locked([keep](const Status& status) { keep->complete(status); });
    return Outcome::posted;
  }
  void abandon(const Status& reason) override {
    impl().remove_fence();
    complete(reason);
  }
  Status cancel_locked() override {
    if (send_) return send_->cancel_locked();
    if (!impl().remove_pending(this)) return Status(Code::unsupported, "the send is being posted");
    impl().remove_fence();
    complete(Status(Code::cancelled, "send was cancelled behind its fence; nothing was sent"));
    return {};
  }

 private:
  PeerImpl& impl() noexcept { return static_cast<PeerImpl&>(*peer_); }
  void released() noexcept override {
    send_ = nullptr;
    if (view_.owner) engine()->retire(std::move(view_.owner));
  }

  std::shared_ptr<PeerState> peer_;
  std::int64_t tag_;
  MemoryView view_;
  std::shared_ptr<WorkState> send_;
};

}  // namespace

Result<std::shared_ptr<WorkState>> ContextImpl::isend(const std::shared_ptr<PeerState>& state, std::int64_t tag,
                                                      const MemoryView& view) {
  HMC_TRY(usable());
  PeerImpl& peer = static_cast<PeerImpl&>(*state);
  if (!peer.fenced()) return messenger_->isend(state, {}, tag, view);
  const auto lock = engine_->lock();
  if (peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed) return peer.failure().with_context("send");
  if (!peer.fenced()) return messenger_->isend_locked(state, {}, tag, view);
  if (tag < 0) return Status(Code::invalid_argument, "send with tag " + std::to_string(tag) + "; tags are 0 to 2^62");
  const auto work = std::make_shared<FencedSend>(state, tag, view);
  work->accepted();
  peer.add_fence();
  peer.enqueue(work);
  engine_->kick();
  return std::shared_ptr<WorkState>(work);
}

Status ContextImpl::send(const std::shared_ptr<PeerState>& state, std::int64_t tag, const MemoryView& view, Deadline deadline) {
  HMC_TRY(usable());
  if (!static_cast<PeerImpl&>(*state).fenced()) return messenger_->send(state, {}, tag, view, deadline);
  HMC_ASSIGN(const auto work, isend(state, tag, view));
  const Status outcome = work->wait(deadline);
  if (outcome.code() != Code::timeout || work->done()) return outcome;
  if (work->cancel().ok()) return Status(Code::timeout, "send did not get past its fence in time; nothing was sent");
  return outcome;
}

}  // namespace hmc
