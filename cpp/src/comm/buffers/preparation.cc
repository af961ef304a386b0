#include "comm/buffers/preparation.h"

#include <utility>

#include "comm/context_impl.h"

namespace hmc {

Preparation::Preparation(std::shared_ptr<BufferState> local, std::shared_ptr<RemoteBufferState> remote, Done done)
    : local_(std::move(local)), remote_(std::move(remote)), device_(local_->exposure->device), done_(std::move(done)) {}

Preparation::Preparation(std::shared_ptr<RemoteBufferState> remote, const Device& device, Done done)
    : remote_(std::move(remote)), device_(device), done_(std::move(done)) {}

void Preparation::cancel() {
  done_ = nullptr;
  if (request_) peer().imports().forget(*request_);
}

void Preparation::finish(Status status) {
  if (const auto done = std::exchange(done_, nullptr)) done(std::move(status));
}

TransportSet Preparation::refused() const { return record().refused(device_) | (local_ ? local_->registration->refused : 0); }

void Preparation::advance() {
  if (!done_) return;
  if (!record().alive.load()) return finish(record().dead);
  if (!peer().carries() && !peer().failure().ok()) return finish(peer().failure());
  const auto found = peer().routes().find(device_, record().device, refused());
  if (found.status().code() == Code::would_block)
    return peer().routes().when_changed([self = shared_from_this()] { self->advance(); });
  if (!found.ok()) return finish(found.status());
  route_ = *found;
  slot_ = route_->slot;
  transport_ = slot_->transport().transport.get();
  if (peer().is_self() || record().find(slot_) != nullptr) return run_slow_part();
  ask_owner();
}

void Preparation::ask_owner() {
  request_ = std::make_shared<Request>();
  request_->record = remote_->record;
  request_->slot = slot_;
  request_->for_operation = local_ != nullptr;
  request_->on_answer = [self = shared_from_this()] {
    if (!self->done_) return;
    const Status answered = self->request_->status;
    answered.ok() ? self->run_slow_part() : self->conclude(answered, false);
  };
  if (const Status sent = peer().imports().start(request_); !sent.ok()) {
    request_->on_answer = nullptr;
    finish(sent);
  }
}

void Preparation::run_slow_part() {
  const Status begun = peer().impl().transfers().worker().run([self = shared_from_this()] {
    Status reached = self->register_here();
    const bool failed_here = !reached.ok();
    if (reached.ok() && self->peer().is_self()) reached = self->fetch_own();
    if (reached.ok()) reached = self->map();
    const auto lock = self->peer().impl().engine()->lock();
    self->conclude(std::move(reached), failed_here);
  });
  if (begun.code() == Code::out_of_memory) finish(begun);
}

Status Preparation::register_here() {
  if (!local_) return {};
  Regions& regions = peer().impl().regions();
  HMC_TRY(regions.ensure(*local_->registration, *transport_, Deadline::never()));
  regions.prepare(*local_->registration, *transport_, record().device);
  return {};
}

// A buffer of this Context: the owner's checks without a message.
Status Preparation::fetch_own() {
  ContextImpl& context = peer().impl();
  wire::Import m;
  m.buffer_id = record().buffer_id;
  m.generation = record().generation;
  m.nonce[0] = record().nonce[0];
  m.nonce[1] = record().nonce[1];
  m.size = record().size;
  m.access = record().access;
  std::shared_ptr<Exposure> exposure;
  std::shared_ptr<Registration> registration;
  {
    const auto lock = context.engine()->lock();
    if (record().find(slot_) != nullptr) return {};
    HMC_ASSIGN(exposure, context.exports().resolve(m));
    registration = exposure->registration;
  }
  HMC_TRY(context.regions().ensure(*registration, *transport_, Deadline::never()));
  const auto lock = context.engine()->lock();
  if (exposure->closed.load()) return Status(Code::stale, "the buffer was closed while it was being imported");
  if (!peer().carries()) return peer().failure();
  if (slot_->state != EndpointSlot::State::ready) return slot_->failure;
  const auto* own = registration->find(transport_);
  if (own == nullptr) return Status(Code::would_block, "the region gave way to another at once");
  HMC_ASSIGN(const Blob blob, (*own)->exported());
  registration->pin(transport_);
  HMC_ASSIGN(auto region, slot_->endpoint->import_region(blob));
  if (record().find(slot_) == nullptr) record().entries.push_back({slot_, 0, std::move(region), {}, false});
  return {};
}

// The region's slow first-use work; it is held against revocation meanwhile. A region that the owner has withdrawn is left: then
// the next round asks for it again.
Status Preparation::map() {
  Engine& engine = *peer().impl().engine();
  RemoteRegion* region = nullptr;
  {
    const auto lock = engine.lock();
    if (!record().alive.load()) return record().dead;
    RemoteImport::Entry* entry = record().find(slot_);
    if (entry == nullptr || entry->prepared_for(device_)) return {};
    entry->preparing = true;
    region = entry->region.get();
    ++record().operations;
  }
  const Status prepared = region->prepare(device_);
  const auto lock = engine.lock();
  --record().operations;
  if (RemoteImport::Entry* entry = record().find_region(region)) {
    entry->preparing = false;
    if (prepared.ok()) entry->prepared.push_back(device_);
    if (entry->withdrawn) peer().imports().settle_withdrawn();
  }
  if (record().retiring) peer().imports().settle(remote_->record);
  if (!record().alive.load()) return record().dead;
  return prepared.with_context("mapping a buffer of " + peer().describe());
}

void Preparation::conclude(Status reached, bool failed_here) {
  if (!done_) return;
  if (!peer().carries()) return finish(peer().failure());  // its routes may be gone
  if (slot_->state == EndpointSlot::State::failed) return advance();
  if (reached.ok()) {
    const RemoteImport::Entry* entry = record().find(slot_);
    return entry != nullptr && entry->prepared_for(device_) ? finish({}) : advance();
  }
  if (reached.code() == Code::device && !failed_here) return on_device_error(reached);
  try_next(reached, failed_here);
}

// A vendor's call also fails on memory of a process that has just died: the error stands once the peer has answered.
void Preparation::on_device_error(const Status& status) {
  const auto undecided = std::make_shared<bool>(true);
  const bool asked = peer().liveness().ask([self = shared_from_this(), status, undecided] {
    if (std::exchange(*undecided, false)) self->try_next(status, false);
  });
  asked ? finish_with_peer(undecided) : try_next(status, false);
}

void Preparation::finish_with_peer(const std::shared_ptr<bool>& undecided) {
  peer().routes().when_changed([self = shared_from_this(), undecided] {
    if (!*undecided) return;
    if (self->peer().carries()) return self->finish_with_peer(undecided);
    *undecided = false;
    self->finish(self->peer().failure());
  });
}

void Preparation::try_next(const Status& status, bool failed_here) {
  if (!done_) return;
  Status reached = status;
  const bool for_now = reached.code() == Code::would_block;
  if (for_now) reached = Status(Code::unsupported, std::string(reached.message()));
  if (!gives_way(reached)) return finish(reached);
  Regions& regions = peer().impl().regions();
  if (failed_here) {
    local_->registration->refused |= route_->bit;
    if (for_now) {
      regions.reconsider_soon(
          [engine = peer().impl().engine().get(), weak = local_->registration->weak_from_this(), bit = route_->bit] {
            auto one = weak.lock();
            if (!one) return;
            one->refused &= ~bit;
            engine->retire(std::move(one));  // perhaps the last reference to user memory
          });
    }
  } else {
    record().refuse(device_, route_->bit);
    peer().imports().drop_unused(record(), slot_);
    if (for_now) {
      regions.reconsider_soon([weak = std::weak_ptr(remote_->record), local = device_, bit = route_->bit] {
        if (const auto one = weak.lock()) one->accept(local, bit);
      });
    }
  }
  const Status next = peer().routes().next(*route_, refused(), reached).status();
  if (!next.ok() && next.code() != Code::would_block) return finish(next);
  advance();
}

}  // namespace hmc
