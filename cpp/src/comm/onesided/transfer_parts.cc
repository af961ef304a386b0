#include "comm/onesided/transfer_parts.h"

#include <algorithm>

#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"

namespace hmc {

void TransferParts::Part::complete(Status status) noexcept {
  done = true;
  work->part_done(*slot, std::move(status));
}

Result<TransferParts::Posting> TransferParts::post_range(Route& route) {
  const auto* region = request_.local()->registration->find(route.transport);
  RemoteImport::Entry* entry = request_.remote()->record->find(route.slot);
  if (region == nullptr || entry == nullptr || !entry->prepared_for(request_.local()->exposure->device)) {
    return Posting::unprepared;
  }
  const std::size_t bytes = request_.bytes();
  const bool is_put = request_.is_put();
  run_ = Run{region->get(), entry->region.get(), &request_.offsets()[0], &request_.offsets()[1], 1, bytes};
  TransferOp op;
  op.runs = {&run_, 1};
  op.bytes = bytes;
  op.level = request_.level();
  op.after = after_.get();
  notify_.attach_to(op);
  slot_ = route.slot;
  ++slot_->operations;
  ++open_;
  posted_ = true;
  const Status status = is_put ? route.endpoint->put(op, &work_) : route.endpoint->get(op, &work_);
  if (!status.ok()) {
    --slot_->operations;
    --open_;
    posted_ = false;
    notify_.detach();
    return status.code() == Code::would_block ? Result<Posting>(Posting::no_room) : status;
  }
  notify_.posted_on(*route.slot);
  route.count(is_put, bytes);
  return Posting::posted;
}

Result<TransferParts::Posting> TransferParts::post_batch() {
  PeerImpl& peer = request_.peer();
  const bool is_put = request_.is_put();
  if (parts_.empty()) {
    const BlockBatchState& batch = *request_.batch();
    if (batch.resolved_epoch != peer.routes().epoch()) return Posting::unprepared;
    groups_ = batch.groups;
    parts_ = std::vector<Part>(groups_->size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].work = &work_;
      parts_[i].slot = (*groups_)[i].slot;
    }
  }
  const auto groups = groups_;  // the last part may complete inside its post and release it
  const bool single = parts_.size() == 1;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (part.posted) continue;
    const BlockBatchState::Group& group = (*groups)[i];
    EndpointSlot& slot = *group.slot;
    if (slot.state != EndpointSlot::State::ready) {
      if (posted_) return slot.failure;
      parts_.clear();
      if (peer.imports().withdrawing()) peer.imports().settle_withdrawn();
      return Posting::unprepared;
    }
    TransferOp op;
    op.runs = group.runs;
    op.bytes = group.bytes;
    op.level = single ? request_.level() : Complete::remote;
    op.after = after_.get();
    if (single) notify_.attach_to(op);
    ++slot.operations;
    ++open_;
    part.posted = posted_ = true;
    const Status status = is_put ? slot.endpoint->put(op, &part) : slot.endpoint->get(op, &part);
    if (!status.ok()) {
      --slot.operations;
      --open_;
      part.posted = false;
      posted_ = std::ranges::any_of(parts_, &Part::posted);
      if (single) notify_.detach();
      return status.code() == Code::would_block ? Result<Posting>(Posting::no_room) : status;
    }
    if (single) notify_.posted_on(slot);
    group.route->count(is_put, group.bytes);
    if (work_.over()) break;
  }
  return Posting::posted;
}

bool TransferParts::done() const noexcept {
  bool all = true;
  for (const Part& part : parts_) all = all && part.done;
  return all;
}

bool TransferParts::uses(const RemoteRegion* region) const noexcept {
  if (parts_.empty()) return open_ != 0 && run_.remote == region;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].done) continue;
    if (std::ranges::any_of((*groups_)[i].runs, [&](const Run& run) { return run.remote == region; })) return true;
  }
  return false;
}

Status TransferParts::cancel() {
  if (parts_.empty())
    return slot_->state == EndpointSlot::State::ready ? slot_->endpoint->cancel(&work_)
                                                      : Status(Code::unsupported, "its endpoint is going down");
  if (parts_.size() == 1 && parts_[0].slot->state == EndpointSlot::State::ready)
    return parts_[0].slot->endpoint->cancel(&parts_[0]);
  return Status(Code::unsupported,
                request_.describe() + " is under way on several transports; it completes by itself, its target will be written");
}

Status TransferParts::fail_over(EndpointSlot& slot, const Status& failure) {
  PeerRoutes& routes = request_.peer().routes();
  const auto leave = [&](BufferState& local, const RemoteBufferState& remote) -> Status {
    HMC_ASSIGN(const Route* failed, routes.find(local, remote));
    if (failed->slot != &slot) return {};
    local.registration->refused |= failed->bit;
    const TransportSet refused = local.registration->refused | remote.record->refused(local.exposure->device);
    const Status next = routes.next(*failed, refused, failure).status();
    return next.code() == Code::would_block ? Status() : next;
  };
  if (request_.batch()) {
    BlockBatchState& batch = *request_.batch();
    for (const auto& pair : batch.pairs) HMC_TRY(leave(*pair.local, *pair.remote));
    batch.resolved_epoch = 0;
    groups_.reset();
    parts_.clear();
  } else {
    HMC_TRY(leave(*request_.local(), *request_.remote()));
  }
  posted_ = false;
  slot_ = nullptr;
  return {};
}

}  // namespace hmc
