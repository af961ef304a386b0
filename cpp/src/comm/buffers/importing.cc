// ContextImpl: importing buffers of peers and of one's own. Lock not held, but for where it is taken here.
#include <algorithm>

#include "comm/context_impl.h"
#include "comm/waits.h"

namespace hmc {

Status ContextImpl::check_descriptor(PeerImpl& peer, const Descriptor& d) {
  const ContextId id{d.context_id[0], d.context_id[1]};
  if (id == peer.identity().context_id) return {};
  return Status(Code::invalid_argument, "the descriptor names a buffer of Context " + context_id_text(id) + ", and " +
                                            peer.describe() + " is Context " + context_id_text(peer.identity().context_id) +
                                            "; import it from the peer that made it");
}

Result<Route*> ContextImpl::wait_route(PeerImpl& peer, const Device& local, const Device& remote, TransportSet refused,
                                       Deadline deadline) {
  while (true) {
    std::uint64_t epoch = 0;
    {
      const auto lock = engine_->lock();
      auto found = peer.routes().find(local, remote, refused);
      if (found.ok() || found.status().code() != Code::would_block) return found;
      epoch = peer.routes().epoch();
    }
    if (!engine_->drive(deadline, [&] { return peer.routes().epoch() != epoch; })) {
      HMC_TRY(usable());
      return Status(Code::timeout, "no path to " + peer.describe() + " was ready in time");
    }
  }
}

Result<RemoteBuffer> ContextImpl::import(const std::shared_ptr<PeerState>& peer, const Descriptor& descriptor, Deadline deadline) {
  HMC_ASSIGN(auto remotes, import_all({&peer, 1}, {&descriptor, 1}, deadline));
  return std::move(remotes.front());
}

Result<std::vector<RemoteBuffer>> ContextImpl::import_all(std::span<const std::shared_ptr<PeerState>> peers,
                                                          std::span<const Descriptor> descriptors, Deadline deadline) {
  HMC_TRY(usable());
  if (peers.size() != descriptors.size()) return Status(Code::invalid_argument, "one peer for each descriptor is needed");
  std::vector<std::shared_ptr<RemoteBufferState>> states(peers.size());
  std::vector<Wanted> wanted;
  std::vector<std::size_t> fresh;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    auto peer = std::static_pointer_cast<PeerImpl>(peers[i]);
    const Descriptor& d = descriptors[i];
    {
      const auto lock = engine_->lock();
      HMC_TRY(check_descriptor(*peer, d));
    }
    const auto device = Device::parse(d.device);
    if (!device.ok()) return device.status();
    HMC_TRY(wait_ready(peer, deadline));
    // Any route to that device will do to ask; others are imported when an operation needs them.
    auto route = wait_route(*peer, Device::cpu(), *device, 0, deadline);
    if (!route.ok() && route.status().code() == Code::unsupported && !device->is_cpu())
      route = wait_route(*peer, *device, *device, 0, deadline);
    if (!route.ok()) return route.status();
    const auto lock = engine_->lock();
    if ((states[i] = peer->imports().known(d)) != nullptr) continue;
    auto record = std::make_shared<RemoteImport>(d, *device);
    if (peer->phase() != PeerPhase::ready) return peer->failure();
    peer->imports().add(record);
    states[i] = std::make_shared<RemoteBufferState>(std::static_pointer_cast<ContextImpl>(shared_from_this()), peer, record);
    wanted.push_back({peer, record, (*route)->slot, (*route)->path.source});
    fresh.push_back(i);
  }
  Status imported = fetch(wanted, deadline);
  for (std::size_t i = 0; i < wanted.size() && imported.ok(); ++i) imported = prepare(wanted[i], deadline);
  const auto broke = [&] {
    const auto lock = engine_->lock();
    return std::ranges::any_of(wanted, [](const Wanted& each) { return each.slot->state == EndpointSlot::State::failed; });
  };
  if (gives_way(imported) || (!imported.ok() && (imported.code() == Code::would_block || broke()))) {
    imported = {};
    for (std::size_t i = 0; i < wanted.size() && imported.ok(); ++i) imported = obtain(wanted[i], nullptr, deadline);
  }
  HMC_TRY(imported);
  std::vector<RemoteBuffer> result;
  const auto lock = engine_->lock();
  for (const std::size_t i : fresh) states[i]->peer->imports().remember(states[i]);
  for (auto& state : states) {
    const std::size_t size = state->record->size;
    result.emplace_back(std::move(state), 0, size);
  }
  return result;
}

// Asks all owners, then waits for all answers.
Status ContextImpl::fetch(std::span<const Wanted> wanted, Deadline deadline) {
  std::vector<std::shared_ptr<Request>> requests;
  std::atomic<std::uint32_t> remaining{1};
  std::atomic<std::uint32_t> all_done{0};
  Status first;
  const auto forget_all = [&] {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i]) wanted[i].peer->imports().forget(*requests[i]);
    }
  };
  for (const auto& each : wanted) {
    if (each.peer->is_self()) {
      HMC_TRY(fetch_own(each, deadline));
    }
  }
  {
    const auto lock = engine_->lock();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      auto& request = requests.emplace_back();
      if (wanted[i].peer->is_self()) continue;
      request = std::make_shared<Request>();
      request->record = wanted[i].record;
      request->slot = wanted[i].slot;
      request->remaining = &remaining;
      request->all_done = &all_done;
      remaining.fetch_add(1);
      if (const Status sent = wanted[i].peer->imports().start(request); !sent.ok()) {
        forget_all();
        return sent;
      }
    }
    if (remaining.fetch_sub(1) == 1) all_done.store(1);
  }
  const bool done = engine_->drive_flag(deadline, all_done);
  const auto lock = engine_->lock();
  if (!done && all_done.load() == 0) {
    forget_all();
    return Status(Code::timeout, "the owner did not answer the import in time; is it stopped, or does nobody drive its progress?");
  }
  for (const auto& request : requests) {
    if (request) HMC_TRY(request->status);
  }
  return {};
}

// A buffer of this Context: the same checks, no wire.
Status ContextImpl::fetch_own(const Wanted& wanted, Deadline deadline) {
  wire::Import m;
  const RemoteImport& record = *wanted.record;
  m.buffer_id = record.buffer_id;
  m.generation = record.generation;
  m.nonce[0] = record.nonce[0];
  m.nonce[1] = record.nonce[1];
  m.size = record.size;
  m.access = record.access;
  Transport* transport = wanted.slot->transport().transport.get();
  std::shared_ptr<Exposure> exposure;
  std::shared_ptr<Registration> registration;
  {
    const auto lock = engine_->lock();
    HMC_ASSIGN(exposure, exports_.resolve(m));
    registration = exposure->registration;
  }
  HMC_TRY(regions_.ensure(*registration, *transport, deadline));
  const auto lock = engine_->lock();
  if (exposure->closed.load()) return Status(Code::stale, "the buffer was closed while it was being imported");
  if (wanted.slot->state != EndpointSlot::State::ready) return wanted.slot->failure;
  const auto* own = registration->find(transport);
  if (own == nullptr) return Status(Code::would_block, "the region gave way to another at once");
  HMC_ASSIGN(const Blob blob, (*own)->exported());
  registration->pin(transport);
  HMC_ASSIGN(auto region, wanted.slot->endpoint->import_region(blob));
  if (wanted.record->find(wanted.slot) == nullptr) wanted.record->entries.push_back({wanted.slot, 0, std::move(region), {}, false});
  return {};
}

Status ContextImpl::obtain(Wanted wanted, Registration* registration, Deadline deadline) {
  while (true) {
    const auto refused = [&] {
      return wanted.record->refused(wanted.local) | (registration != nullptr ? registration->refused : 0);
    };
    TransportSet without = 0;
    {
      const auto lock = engine_->lock();
      without = refused();
    }
    HMC_ASSIGN(Route * route, wait_route(*wanted.peer, wanted.local, wanted.record->device, without, deadline));
    bool known = false;
    {
      const auto lock = engine_->lock();
      if (wanted.peer->phase() != PeerPhase::ready) return wanted.peer->failure();
      wanted.slot = route->slot;
      known = wanted.record->find(wanted.slot) != nullptr;
    }
    Status reached;
    if (registration != nullptr) reached = regions_.ensure(*registration, *wanted.slot->transport().transport, deadline);
    const bool here = !reached.ok();
    if (reached.ok() && !known) reached = fetch({&wanted, 1}, deadline);
    if (reached.ok()) reached = prepare(wanted, deadline);
    if (reached.ok() && registration != nullptr) {
      regions_.prepare(*registration, *wanted.slot->transport().transport, wanted.record->device);
    }
    const auto lock = engine_->lock();
    if (!reached.ok() && wanted.peer->phase() != PeerPhase::ready) return wanted.peer->failure();  // its routes may be gone
    if (!reached.ok() && wanted.slot->state == EndpointSlot::State::failed) continue;
    const bool for_now = reached.code() == Code::would_block;
    if (for_now) reached = Status(Code::unsupported, std::string(reached.message()));
    if (!gives_way(reached)) return reached;
    if (here) {
      registration->refused |= route->bit;
      if (for_now) {
        regions_.reconsider_soon([engine = engine_.get(), weak = registration->weak_from_this(), bit = route->bit] {
          auto one = weak.lock();
          if (!one) return;
          one->refused &= ~bit;
          engine->retire(std::move(one));  // perhaps the last reference to user memory
        });
      }
    } else {
      wanted.record->refuse(wanted.local, route->bit);
      wanted.peer->imports().drop_unused(*wanted.record, wanted.slot);
      if (for_now) {
        regions_.reconsider_soon([weak = std::weak_ptr(wanted.record), local = wanted.local, bit = route->bit] {
          if (const auto one = weak.lock()) one->accept(local, bit);
        });
      }
    }
    if (const Status next = wanted.peer->routes().next(*route, refused(), reached).status(); !next.ok()) {
      if (next.code() != Code::would_block) return next;
    }
  }
}

// What a device's error means: that, once the peer has answered, or else its end.
Status ContextImpl::once_alive(PeerImpl& peer, Status status, Deadline deadline) {
  if (status.code() != Code::device) return status;
  const auto answered = std::make_shared<bool>(false);
  {
    const auto lock = engine_->lock();
    if (!peer.liveness().ask([answered] { *answered = true; })) *answered = true;
  }
  engine_->drive(deadline, [&] { return *answered || peer.phase() != PeerPhase::ready; });
  const auto lock = engine_->lock();
  return peer.phase() == PeerPhase::ready ? status : peer.failure().with_context(status.message());
}

// The region's slow first-use work, without the lock; held against revocation meanwhile.
Status ContextImpl::prepare(const Wanted& wanted, Deadline deadline) {
  RemoteImport& record = *wanted.record;
  RemoteRegion* region = nullptr;
  while (true) {
    auto lock = engine_->lock();
    RemoteImport::Entry* entry = record.find(wanted.slot);
    if (!record.alive.load()) return record.dead;
    if (entry == nullptr && wanted.slot->state != EndpointSlot::State::ready) {
      return Status(Code::transport, "the path to " + wanted.peer->describe() + " failed during the import");
    }
    if (entry == nullptr) {  // the owner has withdrawn it already
      lock.unlock();
      HMC_TRY(fetch({&wanted, 1}, deadline));
      continue;
    }
    if (entry->prepared_for(wanted.local)) return {};
    if (!entry->preparing) {
      entry->preparing = true;
      region = entry->region.get();
      ++record.operations;
      break;
    }
    lock.unlock();
    const bool free = engine_->drive(deadline, [&] {
      const RemoteImport::Entry* e = record.find(wanted.slot);
      return e == nullptr || !e->preparing;
    });
    if (!free) return Status(Code::timeout, "another thread is still mapping the buffer");
  }
  const Status prepared = once_alive(*wanted.peer, region->prepare(wanted.local), deadline);
  const auto lock = engine_->lock();
  --record.operations;
  if (RemoteImport::Entry* entry = record.find_region(region)) {
    entry->preparing = false;
    if (prepared.ok()) entry->prepared.push_back(wanted.local);
    if (entry->withdrawn) wanted.peer->imports().settle_withdrawn();
  }
  engine_->wake_waiters();
  if (record.retiring) wanted.peer->imports().settle(wanted.record);
  if (!record.alive.load()) return record.dead;
  return prepared.with_context("mapping a buffer of " + wanted.peer->describe());
}

Result<RemoteBuffer> ContextImpl::lookup(const std::shared_ptr<PeerImpl>& peer, std::string_view name, Deadline deadline) {
  HMC_TRY(usable());
  HMC_TRY(check_published_name(name));
  HMC_TRY(wait_ready(peer, deadline));
  const auto too_late = [&] { return not_published_in_time(*peer, name); };
  Descriptor descriptor;
  if (peer->is_self()) {
    const auto there = [&] { return exports_.find(name) || closed(); };
    if (!engine_->drive(deadline, there)) return too_late();
    const auto lock = engine_->lock();
    HMC_TRY(usable());
    auto found = exports_.find(name);
    if (!found) return too_late();
    descriptor = std::move(*found);
  } else {
    std::atomic<std::uint32_t> remaining{1};
    std::atomic<std::uint32_t> done{0};
    const auto request = std::make_shared<Request>();
    {
      const auto lock = engine_->lock();
      if (peer->phase() != PeerPhase::ready) return peer->failure();
      request->remaining = &remaining;
      request->all_done = &done;
      HMC_TRY(peer->imports().start_lookup(request, name));
    }
    const bool answered = engine_->drive_flag(deadline, done);
    const auto lock = engine_->lock();
    if (!answered && done.load() == 0) {
      peer->imports().forget(*request);
      HMC_TRY(usable());
      return too_late();
    }
    HMC_TRY(request->status);
    HMC_ASSIGN(descriptor, Descriptor::parse(request->bytes));
  }
  return import(peer, descriptor, deadline);
}

}  // namespace hmc
