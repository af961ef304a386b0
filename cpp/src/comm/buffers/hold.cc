#include "hmc/buffer_hold.h"

#include <utility>
#include <vector>

#include "base/fork.h"
#include "comm/context_impl.h"

namespace hmc {

class BufferHold::State {
 public:
  explicit State(std::shared_ptr<ContextImpl> context) noexcept : context_(std::move(context)) {}
  ~State() {
    if (!begun_ || context_->engine()->forked()) return;
    const auto lock = context_->engine()->lock();
    release();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Engine lock held. After an error nothing is held.
  Status take(std::span<const ConnBuffer> local, std::span<const RemoteBuffer> remote) {
    HMC_TRY(context_->usable());
    begun_ = true;
    context_->exports().begin_hold();
    Status taken = add(local, remote);
    if (!taken.ok()) release();
    return taken;
  }

 private:
  Status add(std::span<const ConnBuffer> local, std::span<const RemoteBuffer> remote) {
    for (const ConnBuffer& buffer : local) {
      if (buffer.closed()) return Status(Code::closed, "this ConnBuffer is closed; register the memory again");
      add(buffer.state()->exposure);
    }
    for (const RemoteBuffer& buffer : remote) {
      const auto& peer = buffer.state()->peer;
      const auto& record = buffer.state()->record;
      if (!record->alive.load()) return record->dead;
      if (peer->phase() == PeerPhase::closed || peer->phase() == PeerPhase::lost) return peer->failure();
      if (peer->is_self()) {
        if (auto own = context_->exports().open(record->buffer_id, record->generation)) add(std::move(own));
      }
      remotes_.emplace_back(peer, record);
      ++record->operations;
      ++record->holds.count;
      ++peer->imports().holds();
    }
    return {};
  }
  void add(std::shared_ptr<Exposure> exposure) {
    locals_.push_back(std::move(exposure));
    ++locals_.back()->local_operations;
    locals_.back()->touched = true;
  }
  void release() {
    begun_ = false;
    for (const auto& exposure : locals_) {
      --exposure->local_operations;
      context_->exports().settle(exposure);
    }
    for (const auto& [peer, record] : remotes_) {
      --record->operations;
      --record->holds.count;
      peer->imports().settle(record);
      if (--peer->imports().holds() != 0) continue;
      peer->operation_over();
      peer->link().on_holds_over();
    }
    context_->exports().end_hold();
  }

  const std::shared_ptr<ContextImpl> context_;
  std::vector<std::shared_ptr<Exposure>> locals_;  // those of remote buffers that are this Context's own included
  std::vector<std::pair<std::shared_ptr<PeerImpl>, std::shared_ptr<RemoteImport>>> remotes_;
  bool begun_ = false;
};

Result<BufferHold> BufferHold::take(std::span<const ConnBuffer> local, std::span<const RemoteBuffer> remote) {
  std::shared_ptr<ContextImpl> context;
  const auto belongs = [&](const auto& buffer) {
    if (!buffer.valid()) return false;
    if (!context) context = buffer.state()->context;
    return buffer.state()->context == context;
  };
  if (!std::ranges::all_of(local, belongs) || !std::ranges::all_of(remote, belongs) || !context)
    return Status(Code::invalid_argument, "a hold needs buffers of one Context, and no empty handle");
  if (context->engine()->forked()) return forked_status();
  auto state = std::make_shared<State>(context);
  Status taken;
  {
    const auto lock = context->engine()->lock();
    taken = state->take(local, remote);
  }
  HMC_TRY(taken);
  return BufferHold(std::move(state));
}

}  // namespace hmc
