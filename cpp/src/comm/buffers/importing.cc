// Importing a buffer of a peer, or of one's own, by its published name or by its descriptor: a Work, for which blocking calls wait.
#include "comm/buffers/importing.h"

#include <string>

#include "comm/buffers/preparation.h"
#include "comm/waits.h"

namespace hmc {
namespace {

Status check_descriptor(const PeerImpl& peer, const Descriptor& d) {
  const ContextId id{d.context_id[0], d.context_id[1]};
  if (id == peer.identity().context_id) return {};
  return Status(Code::invalid_argument, "the descriptor names a buffer of Context " + context_id_text(id) + ", and " +
                                            peer.describe() + " is Context " + context_id_text(peer.identity().context_id) +
                                            "; import it from the peer that made it");
}

}  // namespace

class ImportWait final : public ResultWork<RemoteBuffer> {
 public:
  // `name` empty: by descriptor.
  ImportWait(std::shared_ptr<PeerImpl> peer, std::string_view name, const Descriptor& descriptor)
      : ResultWork(peer->impl()), owner_(&peer->impl()), peer_(std::move(peer)), name_(name), descriptor_(descriptor) {}

  void start(Deadline deadline) {
    const auto on_ready = [weak = this->weak()](const Status& status) {
      const auto self = weak.lock();
      if (self && !self->done()) self->on_ready(status);
    };
    peer_->when_ready(on_ready, WhenIdle::connect, weak());
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
  // For what runs at last when the peer ends, perhaps long after this Work, which keeps itself until it is complete.
  [[nodiscard]] std::weak_ptr<ImportWait> weak() { return self(); }
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
    ask_owner();
  }

  void ask_owner() {
    request_ = std::make_shared<Request>();
    request_->on_answer = [keep = self()] {
      if (keep->done()) return;
      if (keep->request_->status.ok()) return keep->on_name(keep->request_->bytes);
      keep->complete(keep->request_->status);
    };
    const Status sent = peer_->imports().start_lookup(request_, name_);
    if (sent.ok()) return;
    request_->on_answer = nullptr;
    complete(sent);
  }

  void import() {
    if (done()) return;
    if (const Status fits = check_descriptor(*peer_, descriptor_); !fits.ok()) return complete(fits);
    const auto device = Device::parse(descriptor_.device);
    if (!device.ok()) return complete(device.status());
    if (peer_->phase() != PeerPhase::ready) return complete(peer_->failure());
    // Any route to that device will do to ask.
    auto route = peer_->routes().find(Device::cpu(), *device, 0);
    if (!route.ok() && route.status().code() == Code::unsupported && !device->is_cpu())
      route = peer_->routes().find(*device, *device, 0);
    if (!route.ok() && route.status().code() == Code::would_block)
      return peer_->routes().when_changed([weak = this->weak()] {
        if (const auto self = weak.lock()) self->import();
      });
    if (!route.ok()) return complete(route.status());
    if ((state_ = peer_->imports().known(descriptor_)) != nullptr) return complete({});
    state_ = std::make_shared<RemoteBufferState>(context(), peer_, std::make_shared<RemoteImport>(descriptor_, *device));
    peer_->imports().add(state_->record);
    // Refers to this Work, which cancels it when it ends first.
    const auto preparation = std::make_shared<Preparation>(state_, (*route)->path.source, [this](Status status) {
      preparation_.reset();
      if (status.ok()) peer_->imports().remember(state_);
      complete(std::move(status));
    });
    preparation_ = preparation;
    preparation->start();
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
    if (preparation_) preparation_->cancel();
    state_.reset();
  }
  [[nodiscard]] Status too_late() const override {
    if (peer_->phase() == PeerPhase::idle || peer_->phase() == PeerPhase::connecting)
      return {Code::timeout, "the peer was not connected in time"};
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
  std::list<ImportWait*>::iterator place_;  // among the lookups of own names ...
  bool parked_ = false;                     // ... while it stands there
  std::shared_ptr<Request> request_;
  std::shared_ptr<Preparation> preparation_;
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

Result<std::shared_ptr<WorkState>> ilookup_buffer(const std::shared_ptr<PeerState>& state, std::string_view name,
                                                  Deadline deadline) {
  const auto peer = std::static_pointer_cast<PeerImpl>(state);
  ContextImpl& context = peer->impl();
  HMC_TRY(context.usable());
  HMC_TRY(check_published_name(name));
  const auto lock = context.engine()->lock();
  HMC_TRY(context.usable());
  const auto work = std::make_shared<ImportWait>(peer, name, Descriptor());
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<std::shared_ptr<WorkState>> iimport_buffer(const std::shared_ptr<PeerState>& state, const Descriptor& descriptor,
                                                  Deadline deadline) {
  const auto peer = std::static_pointer_cast<PeerImpl>(state);
  ContextImpl& context = peer->impl();
  HMC_TRY(context.usable());
  const auto lock = context.engine()->lock();
  HMC_TRY(context.usable());
  HMC_TRY(check_descriptor(*peer, descriptor));
  const auto work = std::make_shared<ImportWait>(peer, std::string_view(), descriptor);
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<RemoteBuffer> import_buffer(const std::shared_ptr<PeerState>& peer, const Descriptor& descriptor, Deadline deadline) {
  HMC_ASSIGN(const auto work, iimport_buffer(peer, descriptor, deadline));
  return static_cast<ImportWait&>(*work).await();
}

Result<RemoteBuffer> lookup_buffer(const std::shared_ptr<PeerState>& peer, std::string_view name, Deadline deadline) {
  HMC_ASSIGN(const auto work, ilookup_buffer(peer, name, deadline));
  return static_cast<ImportWait&>(*work).await();
}

Result<std::vector<RemoteBuffer>> import_buffers(std::span<const std::shared_ptr<PeerState>> peers,
                                                 std::span<const Descriptor> descriptors, Deadline deadline) {
  if (peers.size() != descriptors.size()) return Status(Code::invalid_argument, "one peer for each descriptor is needed");
  std::vector<std::shared_ptr<WorkState>> works;
  Status failure;
  for (std::size_t i = 0; i < peers.size() && failure.ok(); ++i) {
    auto started = iimport_buffer(peers[i], descriptors[i], deadline);
    failure = started.status();
    if (started.ok()) works.push_back(std::move(*started));
  }
  std::vector<RemoteBuffer> result;
  for (const auto& work : works) {
    if (!failure.ok()) {
      static_cast<void>(work->cancel());
      continue;
    }
    auto imported = static_cast<ImportWait&>(*work).await();
    failure = imported.status();
    if (imported.ok()) result.push_back(std::move(*imported));
  }
  HMC_TRY(failure);
  return result;
}

template <>
Result<RemoteBuffer> WorkOf<RemoteBuffer>::take() const {
  if (!valid()) return Status(Code::invalid_argument, "this Work is empty: it names no operation");
  return static_cast<ResultWork<RemoteBuffer>&>(*state()).take();
}

}  // namespace hmc
