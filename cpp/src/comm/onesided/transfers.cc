// Transfers: one range, then batches of scattered blocks. Lock not held on entry.
#include "comm/onesided/transfers.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/buffers/preparation.h"
#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"
#include "transport/run_cursor.h"

namespace hmc {
namespace {

const char* verb(bool is_put) noexcept { return is_put ? "put" : "get"; }

Status check_open(const Exposure& exposure, bool is_put) {
  if (!exposure.closed.load(std::memory_order_relaxed)) return {};
  return Status(Code::closed,
                std::string(verb(is_put)) + (is_put ? " from" : " into") + " a closed ConnBuffer; register the memory again");
}

Status check_remote(PeerImpl& peer, const RemoteImport& record, bool is_put) {
  if (peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed) return peer.failure().with_context(verb(is_put));
  if (!record.alive.load(std::memory_order_relaxed)) return record.dead.with_context(verb(is_put));
  return {};
}

// The route between two buffers if all that operations on it require is there, else null: to be prepared.
Result<Route*> prepared_route(const BufferState& local, const RemoteBufferState& remote) {
  const auto route = remote.peer->routes().find(local, remote);
  if (!route.ok()) return route.status().code() == Code::would_block ? Result<Route*>(nullptr) : route.status();
  const auto* region = local.registration->find_for((*route)->transport, remote.record->device);
  const auto* entry = remote.record->find((*route)->slot);
  if (region != nullptr && entry != nullptr && entry->prepared_for(local.exposure->device)) [[likely]]
    return route;
  return static_cast<Route*>(nullptr);
}

// The way of small puts whose transport can end them at once: no Work is made for them.
bool put_short(Route& route, const ConnBuffer& local, const RemoteBuffer& remote, const EncodedNotify& notify) {
  const std::uint64_t offsets[2] = {local.offset(), remote.offset()};
  if (local.size() > short_put_bytes || route.staged || notify.cost() != 0 || !remote.state()->peer->may_post()) return false;
  const auto* region = local.state()->registration->find(route.transport);
  const auto* entry = remote.state()->record->find(route.slot);
  const Run run{region->get(), entry->region.get(), &offsets[0], &offsets[1], 1, local.size()};
  if (!route.endpoint->put_short(run, notify.span())) return false;
  if (!notify.empty()) route.slot->notified = true;
  route.count(true, local.size());
  return true;
}

Result<std::shared_ptr<WorkState>> post_work(const std::shared_ptr<TransferWork>& work, bool pays_credit) {
  PeerImpl& peer = work->peer();
  work->begin();
  const bool in_turn = peer.may_post() && !(pays_credit && !peer.posts().empty());
  bool needs_polling = true;
  if (in_turn && work->post() == PendingOp::Outcome::posted) {
    if (!work->post_error().ok()) return work->post_error();
    needs_polling = work->needs_polling();
  } else {
    work->use_route(nullptr);  // it may have failed by the time
    peer.posts().add(work);
  }
  if (needs_polling && !work->done()) peer.impl().engine()->kick();
  return std::shared_ptr<WorkState>(work);
}

Status check_offsets(std::string_view side, std::size_t pair, std::span<const std::uint64_t> offsets, std::size_t block,
                     std::size_t size) {
  if (offsets.empty()) return {};
  const std::size_t i = block > size ? 0 : first_beyond(offsets.data(), offsets.size(), size - block);
  if (i == offsets.size()) return {};
  return Status(Code::invalid_argument, "pair " + std::to_string(pair) + ": " + std::string(side) + " block " + std::to_string(i) +
                                            " of " + std::to_string(block) + " bytes at offset " + std::to_string(offsets[i]) +
                                            " leaves the buffer slice of " + std::to_string(size) + " bytes");
}

// A copy, which is checked: the caller's other threads may change the offsets meanwhile.
Result<std::vector<std::uint64_t>> checked_offsets(std::string_view side, std::size_t pair, std::span<const std::uint64_t> given,
                                                   std::size_t block, std::size_t size, std::uint64_t base) {
  std::vector<std::uint64_t> offsets(given.begin(), given.end());
  HMC_TRY(check_offsets(side, pair, offsets, block, size));
  if (base != 0) {
    for (std::uint64_t& offset : offsets) offset += base;
  }
  return offsets;
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

// Groups the pairs by the endpoints that carry them. `missing`: the first pair that is to be prepared before.
Status resolve_batch(BlockBatchState& batch, const BlockBatchState::Pair*& missing) {
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

}  // namespace

Result<std::shared_ptr<WorkState>> Transfers::put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options,
                                                  const Envelope& envelope) {
  return transfer(true, source, target, options, envelope);
}

Result<std::shared_ptr<WorkState>> Transfers::get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream) {
  return transfer(false, target, source, {.notify = {}, .complete = Complete::remote, .stream = stream}, {});
}

Result<std::shared_ptr<WorkState>> Transfers::transfer(bool is_put, const ConnBuffer& local, const RemoteBuffer& remote,
                                                       const PutOptions& options, const Envelope& envelope) {
  HMC_TRY(context_.usable());
  if (!local.valid() || !remote.valid()) {
    return Status(Code::invalid_argument,
                  std::string(verb(is_put)) + " needs a ConnBuffer of this process and a RemoteBuffer of a peer; one is empty");
  }
  const auto& mine = local.state();
  const auto& theirs = remote.state();
  if (mine->context.get() != &context_ || theirs->context.get() != &context_) {
    return Status(Code::invalid_argument,
                  std::string(verb(is_put)) + ": both buffers must belong to the Context that the call is made on");
  }
  if (local.size() != remote.size()) {
    return Status(Code::invalid_argument, std::string(verb(is_put)) + " between " + std::to_string(local.size()) +
                                              " bytes here and " + std::to_string(remote.size()) +
                                              " bytes at the peer; slice them to equal sizes");
  }
  if (is_put && theirs->record->access != Access::read_write) {
    return Status(Code::invalid_argument, "put into a buffer that its owner registered for reading only");
  }
  if (!is_put && mine->exposure->read_only)
    return Status(Code::invalid_argument, "get into a ConnBuffer over read-only memory; register memory that may be written");
  HMC_TRY(check_notify(options.notify));
  HMC_ASSIGN(auto after, mark_stream(options.stream, local.device()));
  EncodedNotify notify(options.notify, envelope);
  auto lock = context_.engine()->lock();
  Route* route = nullptr;
  HMC_TRY(context_.usable());
  HMC_TRY(check_open(*mine->exposure, is_put));
  HMC_TRY(check_remote(*theirs->peer, *theirs->record, is_put));
  if (local.size() != 0) {
    HMC_ASSIGN(route, prepared_route(*mine, *theirs));
  }
  if (is_put && route != nullptr && put_short(*route, local, remote, notify)) return context_.done_work();
  const bool pays_credit = notify.cost() != 0;
  const auto work = std::make_shared<TransferWork>(
      TransferRequest(is_put, mine, local.offset(), theirs, remote.offset(), local.size(), options.complete), std::move(notify));
  work->start_after(std::move(after));
  work->use_route(route);
  if (local.size() != 0 && route == nullptr) work->prepare();
  return post_work(work, pays_credit);
}

void Transfers::prepare(const std::shared_ptr<TransferWork>& work, const std::shared_ptr<BufferState>& local,
                        const std::shared_ptr<RemoteBufferState>& remote) {
  std::make_shared<Preparation>(local, remote, [work](Status status) { work->prepared(std::move(status)); })->start();
}

void Transfers::prepare(const std::shared_ptr<TransferWork>& work, const std::shared_ptr<BlockBatchState>& batch) {
  const BlockBatchState::Pair* missing = nullptr;
  Status resolved = resolve_batch(*batch, missing);
  if (missing == nullptr) return work->prepared(std::move(resolved));
  const auto next = [work, batch](Status status) { status.ok() ? prepare(work, batch) : work->prepared(std::move(status)); };
  std::make_shared<Preparation>(missing->local, missing->remote, next)->start();
}

Result<BlockBatch> Transfers::prepare_blocks(std::span<const BlockPair> pairs, std::size_t block) {
  HMC_TRY(context_.usable());
  if (pairs.empty()) return Status(Code::invalid_argument, "a batch needs at least one pair of buffers");
  if (block == 0) return Status(Code::invalid_argument, "a batch needs blocks of at least one byte");
  auto batch = std::make_shared<BlockBatchState>();
  batch->context = std::static_pointer_cast<ContextImpl>(context_.shared_from_this());
  batch->block = block;
  batch->pairs.reserve(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const BlockPair& pair = pairs[i];
    const auto bad = [i](std::string_view why) {
      return Status(Code::invalid_argument, "pair " + std::to_string(i) + ": " + std::string(why));
    };
    if (!pair.local.valid() || !pair.remote.valid()) return bad("a buffer is empty");
    if (pair.local.state()->context.get() != &context_ || pair.remote.state()->context.get() != &context_) {
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
    HMC_ASSIGN(auto local, checked_offsets("local", i, pair.local_offsets, block, pair.local.size(), pair.local.offset()));
    HMC_ASSIGN(auto remote, checked_offsets("remote", i, pair.remote_offsets, block, pair.remote.size(), pair.remote.offset()));
    if (pair.remote.access() != Access::read_write) batch->writable = false;
    if (pair.local.state()->exposure->read_only) batch->local_writable = false;
    batch->blocks += local.size();
    batch->pairs.push_back({pair.local.state(), pair.remote.state(), std::move(local), std::move(remote)});
    add_once(batch->locals, pair.local.state().get());
    add_once(batch->remotes, pair.remote.state().get());
  }
  make_distinct(batch->locals);
  make_distinct(batch->remotes);
  return BlockBatch(std::move(batch));
}

Result<std::shared_ptr<WorkState>> Transfers::transfer_blocks(bool is_put, const BlockBatch& batch, const PutOptions& options,
                                                              const Envelope& envelope) {
  HMC_TRY(context_.usable());
  if (!batch.valid()) return Status(Code::invalid_argument, "an empty BlockBatch; prepare one first");
  const auto& state = batch.state();
  if (state->context.get() != &context_) return Status(Code::invalid_argument, "the batch was prepared on another Context");
  if (is_put && !state->writable)
    return Status(Code::invalid_argument, "put_blocks into a buffer that its owner registered for reading only");
  if (!is_put && !state->local_writable)
    return Status(Code::invalid_argument,
                  "get_blocks into a ConnBuffer over read-only memory; register memory that may be written");
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
  const auto work =
      std::make_shared<TransferWork>(TransferRequest(is_put, state, batch.bytes(), options.complete), std::move(notify));
  work->start_after(std::move(after));
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  const BlockBatchState::Pair* missing = nullptr;
  for (const BufferState* local : state->locals) HMC_TRY(check_open(*local->exposure, is_put));
  for (const RemoteBufferState* remote : state->remotes) HMC_TRY(check_remote(*state->peer, *remote->record, is_put));
  HMC_TRY(resolve_batch(*state, missing));
  if (missing != nullptr) work->prepare();
  return post_work(work, pays_credit);
}

Result<std::shared_ptr<WorkState>> Transfers::put_blocks(const BlockBatch& batch, const PutOptions& options,
                                                         const Envelope& envelope) {
  return transfer_blocks(true, batch, options, envelope);
}

Result<std::shared_ptr<WorkState>> Transfers::get_blocks(const BlockBatch& batch, StreamHandle stream) {
  return transfer_blocks(false, batch, {.notify = {}, .complete = Complete::remote, .stream = stream}, {});
}

}  // namespace hmc
