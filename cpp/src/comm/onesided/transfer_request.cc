#include "comm/onesided/transfer_request.h"

#include "comm/context_impl.h"

namespace hmc {

Status TransferRequest::why_dead() const {
  if (!batch_) return remote_->record->dead;
  for (const RemoteBufferState* remote : batch_->remotes) {
    if (!remote->record->alive.load(std::memory_order_relaxed)) return remote->record->dead;
  }
  return {};
}

bool TransferRequest::touches(const RemoteImport* record) const noexcept {
  if (!batch_) return remote_->record.get() == record;
  for (const RemoteBufferState* remote : batch_->remotes) {
    if (remote->record.get() == record) return true;
  }
  return false;
}

std::string TransferRequest::describe() const {
  return std::string(is_put_ ? "put" : "get") + " of " + std::to_string(bytes_) + " bytes";
}

void TransferRequest::hold() noexcept {
  held_ = true;
  if (batch_) {
    for (BufferState* local : batch_->locals) {
      ++local->exposure->local_operations;
      local->exposure->touched = true;
    }
    for (RemoteBufferState* remote : batch_->remotes) ++remote->record->operations;
  } else {
    ++local_->exposure->local_operations;
    local_->exposure->touched = true;
    ++remote_->record->operations;
  }
}

void TransferRequest::release() noexcept {
  if (!held_) return;
  held_ = false;
  ContextImpl& context = peer_->impl();
  const auto end = [&](BufferState& buffer) {
    Exposure& exposure = *buffer.exposure;
    if (--exposure.local_operations == 0 && exposure.closed.load(std::memory_order_relaxed))
      context.exports().settle(buffer.exposure);
  };
  const auto end_remote = [&](RemoteBufferState& buffer) {
    RemoteImport& record = *buffer.record;
    if (--record.operations == 0 && record.retiring) peer_->imports().settle(buffer.record);
  };
  // A Work that the user keeps does not keep its buffers.
  const auto batch = std::move(batch_);
  const auto local = std::move(local_);
  const auto remote = std::move(remote_);
  if (batch) {
    for (BufferState* each : batch->locals) end(*each);
    for (RemoteBufferState* each : batch->remotes) end_remote(*each);
  } else {
    end(*local);
    end_remote(*remote);
  }
}

}  // namespace hmc
