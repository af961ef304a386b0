#include "hmc/buffer_hold.h"

#include <utility>
#include <vector>

#include "comm/context_impl.h"

namespace hmc {

class BufferHold::State {
 public:
  explicit State(std::shared_ptr<ContextImpl> context) noexcept : context_(std::move(context)) {}
  ~State() {
    if (context_->engine()->forked()) return;
    const auto lock = context_->engine()->lock();
    for (const auto& exposure : locals_) {
      --exposure->local_operations;
      context_->exports().settle(exposure);
    }
    for (const auto& [peer, record] : remotes_) {
      --record->operations;
      peer->imports().settle(record);
      peer->imports().end_hold();
    }
    if (begun_) context_->exports().end_hold();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Engine lock held.
  Status take(std::span<const ConnBuffer> local, std::span<const RemoteBuffer> remote) {
    begun_ = true;
    context_->exports().begin_hold();
    HMC_TRY(context_->usable());
    for (const ConnBuffer& buffer : local) {
      if (buffer.closed()) return Status(Code::closed, "this ConnBuffer is closed; register the memory again");
      locals_.push_back(buffer.state()->exposure);
      ++locals_.back()->local_operations;
      locals_.back()->touched = true;
    }
    for (const RemoteBuffer& buffer : remote) {
      const auto& record = buffer.state()->record;
      if (!record->alive.load()) return record->dead;
      remotes_.emplace_back(buffer.state()->peer, record);
      ++record->operations;
      buffer.state()->peer->imports().begin_hold();
    }
    return {};
  }

 private:
  bool begun_ = false;
  const std::shared_ptr<ContextImpl> context_;
  std::vector<std::shared_ptr<Exposure>> locals_;
  std::vector<std::pair<std::shared_ptr<PeerImpl>, std::shared_ptr<RemoteImport>>> remotes_;
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
