// Transfers: puts, gets and batches of scattered blocks. Owned by ContextImpl. Engine lock not held unless said otherwise.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "comm/wire/envelope.h"
#include "hmc/buffer.h"
#include "hmc/peer.h"
#include "progress/work_state.h"
#include "progress/worker.h"

namespace hmc {

class ContextImpl;
class TransferWork;

class Transfers {
 public:
  explicit Transfers(ContextImpl& context) noexcept : context_(context) {}

  // As Peer::put etc., with the envelope of the notification. The RemoteBuffer names the peer.
  Result<std::shared_ptr<WorkState>> put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options,
                                         const Envelope& envelope);
  Result<std::shared_ptr<WorkState>> get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream);
  Result<std::shared_ptr<WorkState>> put_blocks(const BlockBatch& batch, const PutOptions& options, const Envelope& envelope);
  Result<std::shared_ptr<WorkState>> get_blocks(const BlockBatch& batch, StreamHandle stream);
  Result<BlockBatch> prepare_blocks(std::span<const BlockPair> pairs, std::size_t block);  // all remotes of one peer

  // ---- engine lock held ----
  // Prepares what `work` requires to be posted: between the two buffers, or for the batch. Its prepared() has the outcome.
  static void prepare(const std::shared_ptr<TransferWork>& work, const std::shared_ptr<BufferState>& local,
                      const std::shared_ptr<RemoteBufferState>& remote);
  static void prepare(const std::shared_ptr<TransferWork>& work, const std::shared_ptr<BlockBatchState>& batch);
  // For Preparation. Not the worker of the regions, since a preparation may wait for a region to be evicted.
  [[nodiscard]] Worker& worker() noexcept { return worker_; }

 private:
  Result<std::shared_ptr<WorkState>> transfer(bool is_put, const ConnBuffer& local, const RemoteBuffer& remote,
                                              const PutOptions& options, const Envelope& envelope);
  Result<std::shared_ptr<WorkState>> transfer_blocks(bool is_put, const BlockBatch& batch, const PutOptions& options,
                                                     const Envelope& envelope);

  ContextImpl& context_;
  Worker worker_;
};

}  // namespace hmc
