// Importing a buffer of a peer as a Work, by its published name or by its descriptor.
//
// What depends on the peer is driven by its answers. Mapping the memory is slow and does not wait for the peer: a thread of the
// Context does it, and what can only be settled by trying one transport after the other.
#include <algorithm>
#include <string>

#include "comm/waits.h"

namespace hmc {
namespace {

// One import holds up the next on that thread no longer than this.
constexpr double mapping_seconds = 30;

}  // namespace

class ImportWait final : public ResultWork<RemoteBuffer> {
 public:
  // `name` empty: by descriptor.
  ImportWait(std::shared_ptr<PeerImpl> peer, std::string_view name, const Descriptor& descriptor)
      : ResultWork(peer->impl()), owner_(&peer->impl()), peer_(std::move(peer)), name_(name), descriptor_(descriptor) {}

  void start(Deadline deadline) {
    deadline_ = std::min(deadline.when(), Deadline::after_seconds(mapping_seconds).when());
    peer_->when_ready([self = self()](const Status& status) {
      if (!self->done()) self->on_ready(status);
    });
    begin(deadline);
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  void on_name(const Bytes& descriptor) {
    forget_name();
    auto parsed = Descriptor::parse(descriptor);
    if (!parsed.ok()) return complete(parsed.status());
    descriptor_ = *parsed;
    import();
  }

 private:
  [[nodiscard]] std::list<ImportWait*>& lookups() const noexcept { return owner_->exports().lookups(); }
  [[nodiscard]] std::shared_ptr<ImportWait> self() { return std::static_pointer_cast<ImportWait>(shared_from_this()); }

  void on_ready(const Status& status) {
    if (!status.ok()) return complete(status);
    if (peer_->phase() != PeerPhase::ready) return complete(peer_->failure());
    if (name_.empty()) return import();
    if (peer_->is_self()) {
      if (const auto found = owner_->exports().find(name_)) return on_name(found->serialise());
      place_ = lookups().insert(lookups().end(), this);
      parked_ = true;
      return;
    }
    ask(true, [this] {
      if (request_->status.ok()) return on_name(request_->bytes);
      complete(request_->status);
    });
  }

  // Sends a request; `answered` runs unless the wait has ended before.
  void ask(bool lookup, std::function<void()> answered) {
    request_ = std::make_shared<Request>();
    if (!lookup) {
      request_->record = state_->record;
      request_->slot = slot_;
    }
    request_->on_answer = [keep = self(), answered = std::move(answered)] {
      if (!keep->done()) answered();
    };
    const Status sent = lookup ? peer_->imports().start_lookup(request_, name_) : peer_->imports().start(request_);
    if (sent.ok()) return;
    request_->on_answer = nullptr;
    complete(sent);
  }

  void import() {
    if (done()) return;
    if (const Status fits = ContextImpl::check_descriptor(*peer_, descriptor_); !fits.ok()) return complete(fits);
    const auto device = Device::parse(descriptor_.device);
    if (!device.ok()) return complete(device.status());
    if (peer_->phase() != PeerPhase::ready) return complete(peer_->failure());
    if (peer_->is_self()) return import_own();
    // Any route to that device will do to ask.
    auto route = peer_->routes().find(Device::cpu(), *device, 0);
    if (!route.ok() && route.status().code() == Code::unsupported && !device->is_cpu())
      route = peer_->routes().find(*device, *device, 0);
    if (!route.ok() && route.status().code() == Code::would_block)
      return peer_->routes().when_changed([self = self()] { self->import(); });
    if (!route.ok()) return complete(route.status());
    if ((state_ = peer_->imports().known(descriptor_)) != nullptr) return complete({});
    state_ = std::make_shared<RemoteBufferState>(context(), peer_, std::make_shared<RemoteImport>(descriptor_, *device));
    peer_->imports().add(state_->record);
    slot_ = (*route)->slot;
    local_ = (*route)->path.source;
    ask(false, [this] { map(); });
  }

  // Maps what the owner exported, or finds a transport that reaches the buffer.
  void map() {
    const Status answered = request_->status;
    const bool retry = gives_way(answered) || answered.code() == Code::would_block ||
                       (!answered.ok() && slot_->state == EndpointSlot::State::failed);
    if (!answered.ok() && !retry) return complete(answered);
    owner_->mover_.run([self = self(), context = context(), state = state_, slot = slot_, local = local_, retry,
                        deadline = Deadline::at(deadline_)] {
      ContextImpl& owner = *context;
      const ContextImpl::Wanted wanted{state->peer, state->record, slot, local};
      Status mapped = retry ? Status() : owner.prepare(wanted, deadline);
      const auto broke = [&] {
        const auto lock = owner.engine()->lock();
        return slot->state == EndpointSlot::State::failed;
      };
      if (retry || gives_way(mapped) || (!mapped.ok() && (mapped.code() == Code::would_block || broke())))
        mapped = owner.obtain(wanted, nullptr, deadline);
      const auto lock = owner.engine()->lock();
      if (self->done()) return;
      if (mapped.ok()) self->peer_->imports().remember(self->state_);
      self->complete(std::move(mapped));
    });
  }

  // A buffer of this Context: no wire, but perhaps a slow registration.
  void import_own() {
    owner_->mover_.run([self = self(), context = context(), descriptor = descriptor_, deadline = Deadline::at(deadline_)] {
      auto imported = context->import(self->peer_, descriptor, deadline);
      const auto lock = context->engine()->lock();
      if (imported.ok()) self->state_ = imported->state();
      self->complete(imported.ok() ? Status() : imported.status());
    });
  }

  void forget_name() noexcept {
    if (std::exchange(parked_, false)) lookups().erase(place_);
  }
  void leave() noexcept override {
    forget_name();
    if (request_) {
      peer_->imports().forget(*request_);
      request_->on_answer = nullptr;
    }
    state_.reset();
  }
  [[nodiscard]] Status too_late() const override {
    if (!name_.empty() && state_ == nullptr) return not_published_in_time(*peer_, name_);
    return {Code::timeout, "the owner did not answer the import in time; is it stopped, or does nobody drive its progress?"};
  }
  std::optional<RemoteBuffer> take_locked() override {
    if (!state_) return std::nullopt;
    const std::size_t size = state_->record->size;
    return RemoteBuffer(std::exchange(state_, nullptr), 0, size);
  }

  ContextImpl* const owner_;  // while it waits
  const std::shared_ptr<PeerImpl> peer_;
  const std::string name_;
  Descriptor descriptor_;
  Deadline::Clock::time_point deadline_{};  // of the mapping
  std::list<ImportWait*>::iterator place_;  // among the lookups of own names ...
  bool parked_ = false;                     // ... while it stands there
  std::shared_ptr<Request> request_;
  EndpointSlot* slot_ = nullptr;
  Device local_;
  std::shared_ptr<RemoteBufferState> state_;
};

Status check_published_name(std::string_view name) {
  if (!name.empty() && name.size() <= wire::max_name) return {};
  return {Code::invalid_argument, "a published name has 1 to 255 bytes, this one " + std::to_string(name.size())};
}

Status not_published_in_time(PeerImpl& peer, std::string_view name) {
  return {Code::timeout, peer.describe() + " did not publish \"" + std::string(name) + "\" in time"};
}

void Exports::serve_lookups(std::string_view name, const Bytes& descriptor) {
  for (ImportWait* wait : std::list(lookups_)) {
    if (wait->name() == name) wait->on_name(descriptor);
  }
}

Result<std::shared_ptr<WorkState>> ContextImpl::ilookup(const std::shared_ptr<PeerImpl>& peer, std::string_view name,
                                                        Deadline deadline) {
  HMC_TRY(usable());
  HMC_TRY(check_published_name(name));
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  const auto work = std::make_shared<ImportWait>(peer, name, Descriptor());
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<std::shared_ptr<WorkState>> ContextImpl::iimport(const std::shared_ptr<PeerImpl>& peer, const Descriptor& descriptor,
                                                        Deadline deadline) {
  HMC_TRY(usable());
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  HMC_TRY(check_descriptor(*peer, descriptor));
  const auto work = std::make_shared<ImportWait>(peer, std::string_view(), descriptor);
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

template <>
Result<RemoteBuffer> WorkOf<RemoteBuffer>::take() const {
  if (!valid()) return Status(Code::invalid_argument, "this Work is empty: it names no operation");
  return static_cast<ResultWork<RemoteBuffer>&>(*state()).take();
}

}  // namespace hmc
