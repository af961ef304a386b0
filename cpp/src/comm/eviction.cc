// Registrations that a vendor limits: idle regions give way to new ones.
//
// Where a transport has no room for one more region, the owner of the memory picks one that nothing here uses, asks the peers that
// imported it to let it go (withdraw, answered by release), and deregisters it. Who needs it again registers and imports it again.
// Peers write without the owner's knowledge, so what they use most cannot be told: the oldest goes first, and what operations here
// have touched since the last time comes behind. A region stays for a second at least, so that more buffers in use than there is
// room for do not push one another out at every operation; what finds no room, also with all that may go, goes by the next
// transport, and tries again a second later. A region that a peer does not let go of in time stays, as one that has just come.
#include <algorithm>
#include <map>

#include "comm/context_impl.h"
#include "comm/transfer.h"

namespace hmc {
namespace {

constexpr double residency_seconds = 1;
// For peers to finish what they have under way.
constexpr double patience_seconds = 2;

}  // namespace

// ---- owner's side ----

Result<std::shared_ptr<LocalRegion>> ContextImpl::register_region(const Registration& registration, Transport& transport,
                                                                  Deadline deadline) {
  const Memory& memory = registration.memory();
  // What is not enough for it is left where it is. How much is missing only the transport knows, after the first has gone.
  for (std::size_t least = memory.size();; least = 0) {
    auto region = transport.register_region(registration.view());
    if (region.ok()) return std::shared_ptr<LocalRegion>(std::move(*region));
    if (region.status().code() != Code::would_block || !evict(transport, memory.device(), least, deadline)) return region.status();
  }
}

bool ContextImpl::evict(const Transport& transport, const Device& device, std::size_t least, Deadline deadline) {
  Victim victim;
  {
    const auto lock = engine_->lock();
    if (closed()) return false;
    victim = pick_victim(transport, device);
    if (!victim.registration || victim.together < least) return false;
    count("registrations.evicted", 1);
    victim.registration->begin_leaving(victim.region);
    for (const auto& [id, peer] : peers_) peer->withdraw(*victim.registration, victim.region);
    all_routes_changed();  // batches have it among their runs
    engine_->kick();
  }
  const Deadline patience = Deadline::after_seconds(patience_seconds);
  engine_->drive(patience.when() < deadline.when() ? patience : deadline,
                 [&] { return !victim.registration->has(victim.region) || closed(); });
  const auto lock = engine_->lock();
  const bool gone = !victim.registration->has(victim.region);
  if (!gone) victim.registration->stay(victim.region);  // others may use it until that peer moves
  engine_->retire(std::move(victim.registration));
  return gone && !closed();
}

ContextImpl::Victim ContextImpl::pick_victim(const Transport& transport, const Device& device) {
  struct Use {
    std::vector<Exposure*> exposures;
    bool busy = false;
    bool touched = false;
  };
  std::map<std::shared_ptr<Registration>, Use> all;
  const auto look = [&](Exposure& exposure) {
    if (!exposure.registration || exposure.device.vendor() != device.vendor()) return;
    Use& use = all[exposure.registration];
    use.exposures.push_back(&exposure);
    use.busy = use.busy || exposure.closed.load() || exposure.local_operations != 0;
    use.touched = use.touched || exposure.touched;
  };
  for (const BufferSlot& slot : buffer_slots_) {
    if (slot.open) look(*slot.open);
  }
  for (const auto& exposure : closing_buffers_) look(*exposure);
  using Clock = Registration::Clock;
  const auto before = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(residency_seconds));
  Victim victim;
  std::pair<bool, Clock::time_point> least{true, Clock::time_point::max()};
  for (const auto& [registration, use] : all) {
    Clock::time_point since;
    const LocalRegion* found = use.busy ? nullptr : registration->scarce_region(&transport, before, since);
    if (found == nullptr) continue;
    victim.together += registration->memory().size();
    if (std::pair(use.touched, since) >= least) continue;
    least = {use.touched, since};
    victim.registration = registration;
    victim.region = found;
  }
  for (const auto& [registration, use] : all) {
    for (Exposure* exposure : use.exposures) exposure->touched = false;
  }
  return victim;
}

void ContextImpl::all_routes_changed() {
  for (const auto& [id, peer] : peers_) peer->routes_changed();
  if (self_) static_cast<PeerImpl&>(*self_).routes_changed();
}

void ContextImpl::reconsider_soon(std::function<void()> accept) {
  const std::weak_ptr<ContextState> self = shared_from_this();
  engine_->at(Deadline::after_seconds(residency_seconds), [self, accept = std::move(accept)] {
    const auto context = self.lock();
    if (!context || impl_of(*context).closed()) return;
    accept();
    impl_of(*context).all_routes_changed();
  });
}

void PeerImpl::withdraw(const Registration& registration, const LocalRegion* region) {
  for (const auto& [request, grant] : granted_) {
    if (grant.exposure->registration.get() != &registration || grant.region != region) continue;
    static_cast<void>(send_control(wire::withdraw, wire::encode_request(request)));
  }
}

// ---- importer's side ----

void PeerImpl::on_withdraw(std::uint64_t request) {
  for (const auto& record : records_) {
    for (auto& entry : record->entries) {
      if (entry.request != request || entry.withdrawn) continue;
      entry.withdrawn = withdrawing_ = true;
      routes_changed();  // batches have it among their runs
      return settle_withdrawn();
    }
  }
}

bool PeerImpl::in_use(const RemoteRegion* region) const noexcept {
  for (const TransferWork* work = works_; work != nullptr; work = work->next_) {
    if (work->uses(region)) return true;
  }
  return false;
}

// Lets go of what was withdrawn once nothing is under way on it, puts that completed locally included.
void PeerImpl::settle_withdrawn() {
  class Drained final : public Completion {
   public:
    Drained(std::shared_ptr<PeerImpl> peer, std::shared_ptr<RemoteImport> record, const RemoteRegion* region)
        : peer_(std::move(peer)), record_(std::move(record)), region_(region) {}
    void complete(Status) noexcept override {
      const std::unique_ptr<Drained> self(this);
      peer_->drop_withdrawn(*record_, region_);
    }

   private:
    std::shared_ptr<PeerImpl> peer_;
    std::shared_ptr<RemoteImport> record_;
    const RemoteRegion* region_;
  };
  withdrawing_ = false;
  const auto records = records_;
  for (const auto& record : records) {
    std::vector<const RemoteRegion*> withdrawn;
    for (const auto& entry : record->entries) {
      if (entry.withdrawn && !entry.draining) withdrawn.push_back(entry.region.get());
    }
    for (const RemoteRegion* region : withdrawn) {
      RemoteImport::Entry* entry = record->find_region(region);
      if (entry == nullptr || entry->draining) continue;  // by a completion of one before it
      if (entry->preparing || in_use(region)) {
        withdrawing_ = true;
        continue;
      }
      entry->draining = true;
      auto drained = std::make_unique<Drained>(std::static_pointer_cast<PeerImpl>(shared_from_this()), record, region);
      if (entry->slot->state == EndpointSlot::State::ready && entry->slot->endpoint->flush(drained.get()).ok()) {
        static_cast<void>(drained.release());  // deletes itself, perhaps has done so
      } else {
        drop_withdrawn(*record, region);
      }
    }
  }
}

void PeerImpl::drop_withdrawn(RemoteImport& record, const RemoteRegion* region) {
  const RemoteImport::Entry* entry = record.find_region(region);
  if (entry == nullptr) return;  // the record has been retired meanwhile
  const std::uint64_t request = entry->request;
  record.entries.erase(record.entries.begin() + (entry - record.entries.data()));
  static_cast<void>(send_control(wire::release, wire::encode_request(request)));
}

}  // namespace hmc
