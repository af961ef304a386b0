// ContextImpl: batches of scattered blocks. Lock not held on entry.
#include <algorithm>

#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"
#include "transport/run_cursor.h"

namespace hmc {
namespace {

Status check_offsets(std::string_view side, std::size_t pair, std::span<const std::uint64_t> offsets, std::size_t block,
                     std::size_t size) {
  if (offsets.empty()) return {};
  const std::size_t i = block > size ? 0 : first_beyond(offsets.data(), offsets.size(), size - block);
  if (i == offsets.size()) return {};
  return Status(Code::invalid_argument, "pair " + std::to_string(pair) + ": " + std::string(side) + " block " + std::to_string(i) +
                                            " of " + std::to_string(block) + " bytes at offset " + std::to_string(offsets[i]) +
                                            " leaves the buffer slice of " + std::to_string(size) + " bytes");
}

std::vector<std::uint64_t> shifted(std::span<const std::uint64_t> offsets, std::uint64_t base) {
  std::vector<std::uint64_t> result(offsets.begin(), offsets.end());
  if (base != 0) {
    for (std::uint64_t& offset : result) offset += base;
  }
  return result;
}

template <class T>
void add_once(std::vector<T*>& all, T* one) {
  if (!all.empty() && all.back() == one) return;
  all.push_back(one);
}

template <class T>
void make_distinct(std::vector<T*>& all) {
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

}  // namespace

Result<BlockBatch> ContextImpl::prepare_blocks(std::span<const BlockPair> pairs, std::size_t block) {
  HMC_TRY(usable());
  if (pairs.empty()) return Status(Code::invalid_argument, "a batch needs at least one pair of buffers");
  if (block == 0) return Status(Code::invalid_argument, "a batch needs blocks of at least one byte");
  auto batch = std::make_shared<BlockBatchState>();
  batch->context = std::static_pointer_cast<ContextImpl>(shared_from_this());
  batch->block = block;
  batch->pairs.reserve(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const BlockPair& pair = pairs[i];
    const auto bad = [i](std::string_view why) {
      return Status(Code::invalid_argument, "pair " + std::to_string(i) + ": " + std::string(why));
    };
    if (!pair.local.valid() || !pair.remote.valid()) return bad("a buffer is empty");
    if (pair.local.state()->context.get() != this || pair.remote.state()->context.get() != this) {
      return bad("both buffers must belong to the Context that the call is made on");
    }
    const auto& peer = pair.remote.state()->peer;
    if (batch->peer && batch->peer != peer)
      return bad("all remote buffers of a batch must be of one peer; prepare one batch for each");
    batch->peer = peer;
    if (pair.local_offsets.size() != pair.remote_offsets.size()) {
      return bad(std::to_string(pair.local_offsets.size()) + " local offsets, " + std::to_string(pair.remote_offsets.size()) +
                 " remote ones");
    }
    HMC_TRY(check_offsets("local", i, pair.local_offsets, block, pair.local.size()));
    HMC_TRY(check_offsets("remote", i, pair.remote_offsets, block, pair.remote.size()));
    if (pair.remote.access() != Access::read_write) batch->writable = false;
    batch->blocks += pair.local_offsets.size();
    batch->pairs.push_back({pair.local.state(), pair.remote.state(), shifted(pair.local_offsets, pair.local.offset()),
                            shifted(pair.remote_offsets, pair.remote.offset())});
    add_once(batch->locals, pair.local.state().get());
    add_once(batch->remotes, pair.remote.state().get());
  }
  make_distinct(batch->locals);
  make_distinct(batch->remotes);
  return BlockBatch(std::move(batch));
}

Status ContextImpl::resolve_batch(BlockBatchState& batch, const BlockBatchState::Pair*& missing) {
  for (const RemoteBufferState* remote : batch.remotes) {
    if (!remote->record->alive.load(std::memory_order_relaxed)) return remote->record->dead;
  }
  if (batch.blocks == 0 || batch.resolved_epoch == batch.peer->routes().epoch()) return {};
  std::vector<BlockBatchState::Group> groups;
  for (const auto& pair : batch.pairs) {
    if (pair.local_offsets.empty()) continue;
    HMC_ASSIGN(Route * route, prepared_route(*pair.local, *pair.remote));
    if (route == nullptr) {
      missing = &pair;
      return {};
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.slot == route->slot; });
    if (group == groups.end()) group = groups.insert(groups.end(), BlockBatchState::Group{route->slot, route, {}, 0});
    const std::size_t count = pair.local_offsets.size();
    group->runs.push_back(Run{pair.local->registration->find(route->transport)->get(),
                              pair.remote->record->find(route->slot)->region.get(), pair.local_offsets.data(),
                              pair.remote_offsets.data(), count, batch.block});
    group->bytes += count * batch.block;
  }
  batch.groups = std::make_shared<const std::vector<BlockBatchState::Group>>(std::move(groups));
  batch.resolved_epoch = batch.peer->routes().epoch();
  return {};
}

Result<std::shared_ptr<WorkState>> ContextImpl::transfer_blocks(bool is_put, const BlockBatch& batch, const PutOptions& options,
                                                                const Envelope& envelope) {
  HMC_TRY(usable());
  if (!batch.valid()) return Status(Code::invalid_argument, "an empty BlockBatch; prepare one first");
  const auto& state = batch.state();
  if (state->context.get() != this) return Status(Code::invalid_argument, "the batch was prepared on another Context");
  if (is_put && !state->writable)
    return Status(Code::invalid_argument, "put_blocks into a buffer that its owner registered for reading only");
  HMC_TRY(check_notify(options.notify));
  std::shared_ptr<StreamPoint> after;
  if (!state->pairs.empty()) {
    const Device& device = state->pairs.front().local->exposure->device;
    for (const auto& pair : state->pairs) {
      if (options.stream == no_stream || pair.local->exposure->device == device) continue;
      return Status(Code::invalid_argument, "stream= with a batch over buffers of several devices");
    }
    HMC_ASSIGN(after, mark_stream(options.stream, device));
  }
  EncodedNotify notify(options.notify, envelope);
  const bool pays_credit = notify.cost() != 0;
  const auto work = std::make_shared<TransferWork>(is_put, state, batch.bytes(), options.complete, std::move(notify));
  work->start_after(std::move(after));
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  const BlockBatchState::Pair* missing = nullptr;
  for (const BufferState* local : state->locals) HMC_TRY(check_open(*local->exposure, is_put));
  for (const RemoteBufferState* remote : state->remotes) HMC_TRY(check_remote(*state->peer, *remote->record, is_put));
  HMC_TRY(resolve_batch(*state, missing));
  if (missing != nullptr) work->prepare();
  return post_work(work, pays_credit);
}

Result<std::shared_ptr<WorkState>> ContextImpl::put_blocks(const BlockBatch& batch, const PutOptions& options,
                                                           const Envelope& envelope) {
  return transfer_blocks(true, batch, options, envelope);
}

Result<std::shared_ptr<WorkState>> ContextImpl::get_blocks(const BlockBatch& batch, StreamHandle stream) {
  return transfer_blocks(false, batch, {.notify = {}, .complete = Complete::remote, .stream = stream}, {});
}

}  // namespace hmc
