// ContextImpl: peers from their first sight to their end.
#include "comm/context_impl.h"

namespace hmc {

std::shared_ptr<PeerImpl> ContextImpl::self_handle() {
  struct Both {
    std::shared_ptr<ContextState> context;
    std::shared_ptr<PeerState> peer;
  };
  const auto both = std::make_shared<Both>(Both{shared_from_this(), self_});
  return {both, static_cast<PeerImpl*>(self_.get())};
}

std::shared_ptr<PeerState> ContextImpl::expect_peer(const ContextId& id, std::vector<std::string> addresses, std::string name) {
  if (id == id_) return self_;
  auto peer = peers_.find(id);
  if (!peer) peer = peers_.make(id);
  peer->handshake().expect(id, std::move(addresses), std::move(name));
  return peer;
}

Status ContextImpl::wait_ready(const std::shared_ptr<PeerImpl>& peer, Deadline deadline) {
  HMC_TRY(usable());
  struct Wait {
    std::atomic<std::uint32_t> done{0};
    Status status;
  };
  const auto wait = std::make_shared<Wait>();
  {
    const auto lock = engine_->lock();
    if (peer->phase() == PeerPhase::ready) return {};
    peer->when_ready([wait, engine = engine_](const Status& status) {
      wait->status = status;
      wait->done.store(1);
      engine->wake_waiters();
    });
  }
  if (engine_->drive_flag(deadline, wait->done)) return wait->status;
  HMC_TRY(usable());
  return Status(Code::timeout, "the peer was not connected in time");
}

void ContextImpl::leave(const std::shared_ptr<PeerImpl>& peer) {
  if (!usable().ok() || peer->is_self()) return;
  const auto lock = engine_->lock();
  peer->closing().leave();
  engine_->kick();
}

void ContextImpl::remove_scope(std::uint32_t scope) {
  scopes_.remove(scope);
  notifier_.table().drop_scope(scope);
  messenger_->drop_scope(scope);
  engine_->wake_waiters();
}

}  // namespace hmc
