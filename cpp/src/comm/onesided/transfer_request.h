// TransferRequest: what one put, get or batch moves, between which buffers, and when it counts as complete.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "comm/buffers/buffers.h"
#include "hmc/peer.h"

namespace hmc {

// Engine lock held, but for construction and constants.
class TransferRequest {
 public:
  // One range. Offsets are in the registrations.
  TransferRequest(bool is_put, std::shared_ptr<BufferState> local, std::uint64_t local_offset,
                  std::shared_ptr<RemoteBufferState> remote, std::uint64_t remote_offset, std::size_t bytes, Complete level)
      : is_put_(is_put),
        level_(level),
        bytes_(bytes),
        peer_(remote->peer),
        local_(std::move(local)),
        remote_(std::move(remote)),
        offsets_{local_offset, remote_offset} {}
  TransferRequest(bool is_put, std::shared_ptr<BlockBatchState> batch, std::size_t bytes, Complete level)
      : is_put_(is_put), level_(level), bytes_(bytes), peer_(batch->peer), batch_(std::move(batch)) {}

  [[nodiscard]] bool is_put() const noexcept { return is_put_; }
  [[nodiscard]] Complete level() const noexcept { return level_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] PeerImpl& peer() const noexcept { return *peer_; }
  // Until release(): the buffers of one range, or the batch; the other is null.
  [[nodiscard]] const std::shared_ptr<BufferState>& local() const noexcept { return local_; }
  [[nodiscard]] const std::shared_ptr<RemoteBufferState>& remote() const noexcept { return remote_; }
  [[nodiscard]] const std::uint64_t* offsets() const noexcept { return offsets_; }  // local, remote
  [[nodiscard]] const std::shared_ptr<BlockBatchState>& batch() const noexcept { return batch_; }

  // Errors: why a remote buffer cannot be used any more.
  [[nodiscard]] Status check_alive() const {
    return !batch_ && remote_->record->alive.load(std::memory_order_relaxed) ? Status() : why_dead();
  }
  [[nodiscard]] bool touches(const RemoteImport* record) const noexcept;
  [[nodiscard]] std::string describe() const;

  // Counts the operation on its buffers.
  void hold() noexcept;
  [[nodiscard]] bool held() const noexcept { return held_; }
  // Ends the count and releases the buffers.
  void release() noexcept;

 private:
  [[nodiscard]] Status why_dead() const;  // ok: alive

  bool is_put_;
  bool held_ = false;
  Complete level_;
  std::size_t bytes_;
  std::shared_ptr<PeerImpl> peer_;
  std::shared_ptr<BufferState> local_;
  std::shared_ptr<RemoteBufferState> remote_;
  std::shared_ptr<BlockBatchState> batch_;
  std::uint64_t offsets_[2] = {0, 0};
};

}  // namespace hmc
