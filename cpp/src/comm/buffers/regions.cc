// Registrations that a vendor limits: idle regions give way to new ones.
//
// Where a transport has no room for one more region, the owner of the memory picks one that nothing here uses, asks the peers that
// imported it to let it go (withdraw, answered by release), and deregisters it. Who needs it again registers and imports it again.
// Peers write without the owner's knowledge, so what they use most cannot be told: the oldest goes first, and what operations here
// have touched since the last time comes behind. A region stays for a second at least, so that more buffers in use than there is
// room for do not push one another out at every operation; what finds no room, also with all that may go, goes by the next
// transport, and tries again a second later. A region that a peer does not let go of in time stays, as one that has just come.
#include "comm/buffers/regions.h"

#include <algorithm>

#include "comm/context_impl.h"

namespace hmc {
namespace {

constexpr double residency_seconds = 1;
// For peers to finish what they have under way.
constexpr double patience_seconds = 2;

}  // namespace

Result<std::shared_ptr<LocalRegion>> transient_region(Route& route, const MemoryView& view) {
  RegionView region;
  region.span = DeviceSpan{view.data, view.bytes, view.device};
  region.transient = true;
  HMC_ASSIGN(auto made, route.transport->register_region(region));
  return std::shared_ptr<LocalRegion>(std::move(made));
}

std::shared_ptr<Registration> Regions::get(const Memory& memory, Access access) {
  auto& entry = registrations_[Key{memory.block().get(), memory.offset(), memory.size(), access}];
  auto registration = entry.lock();
  context_.counters().add(registration ? "registration_cache.hits" : "registration_cache.misses", 1);
  if (registration) return registration;
  registration = std::make_shared<Registration>(memory, access);
  entry = registration;
  if (registrations_.size() >= sweep_at_) {
    std::erase_if(registrations_, [](const auto& item) { return item.second.expired(); });
    sweep_at_ = std::max<std::size_t>(64, registrations_.size() * 2);
  }
  return registration;
}

Result<std::shared_ptr<LocalRegion>> Regions::make(const Registration& registration, Transport& transport, Deadline deadline) {
  const Memory& memory = registration.memory();
  // What is not enough for it is left where it is. How much is missing only the transport knows, after the first has gone.
  for (std::size_t least = memory.size();; least = 0) {
    auto region = transport.register_region(registration.view());
    if (region.ok()) return std::shared_ptr<LocalRegion>(std::move(*region));
    if (region.status().code() != Code::would_block || !evict(transport, memory.device(), least, deadline)) return region.status();
  }
}

Status Regions::ensure(Registration& registration, Transport& transport, Deadline deadline) {
  {
    const auto lock = context_.engine()->lock();
    if (registration.find(&transport) != nullptr) return {};
  }
  HMC_ASSIGN(auto region, make(registration, transport, deadline));
  const auto lock = context_.engine()->lock();
  if (registration.users == 0) {
    region.reset();  // a region ends with the lock held
    return Status(Code::closed, "the ConnBuffer was closed meanwhile; register the memory again");
  }
  registration.add(&transport, std::move(region));
  context_.counters().add("registrations", 1);
  return {};
}

void Regions::prepare(Registration& registration, const Transport& transport, const Device& remote) {
  std::shared_ptr<LocalRegion> region;
  {
    const auto lock = context_.engine()->lock();
    const auto* known = registration.find(&transport);
    if (known == nullptr || registration.find_for(&transport, remote) != nullptr) return;
    region = *known;
  }
  region->prepare(remote);
  const auto lock = context_.engine()->lock();
  registration.mark_prepared(&transport, remote);
  region.reset();  // perhaps the last: a region ends with the lock held
}

bool Regions::evict(const Transport& transport, const Device& device, std::size_t least, Deadline deadline) {
  Victim victim;
  {
    const auto lock = context_.engine()->lock();
    if (context_.closing().begun()) return false;
    victim = pick_victim(transport, device);
    if (!victim.registration || victim.together < least) return false;
    context_.counters().add("registrations.evicted", 1);
    victim.registration->begin_leaving(victim.region);
    for (const auto& [id, peer] : context_.peers().by_id()) peer->grants().withdraw(*victim.registration, victim.region);
    all_routes_changed();  // batches have it among their runs
    context_.engine()->kick();
  }
  const Deadline patience = Deadline::after_seconds(patience_seconds);
  context_.engine()->drive(patience.when() < deadline.when() ? patience : deadline,
                           [&] { return !victim.registration->has(victim.region) || context_.closing().begun(); });
  const auto lock = context_.engine()->lock();
  const bool gone = !victim.registration->has(victim.region);
  if (!gone) victim.registration->stay(victim.region);  // others may use it until that peer moves
  context_.engine()->retire(std::move(victim.registration));
  return gone && !context_.closing().begun();
}

Regions::Victim Regions::pick_victim(const Transport& transport, const Device& device) {
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
  context_.exports().for_each(look);
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

void Regions::all_routes_changed() {
  for (const auto& [id, peer] : context_.peers().by_id()) peer->routes().changed();
  if (context_.self()) static_cast<PeerImpl&>(*context_.self()).routes().changed();
}

void Regions::reconsider_soon(std::function<void()> accept) {
  const std::weak_ptr<ContextState> self = context_.shared_from_this();
  context_.engine()->at(Deadline::after_seconds(residency_seconds), [self, accept = std::move(accept)] {
    const auto context = self.lock();
    if (!context || impl_of(*context).closing().begun()) return;
    accept();
    impl_of(*context).regions().all_routes_changed();
  });
}

}  // namespace hmc
