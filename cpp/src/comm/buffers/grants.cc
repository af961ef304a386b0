#include "comm/buffers/grants.h"

#include <algorithm>

#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// Imports one peer may hold, and lookups that may wait.
constexpr std::size_t max_grants = 1 << 18;
constexpr std::size_t max_lookups = 1024;

Status closed_meanwhile() { return {Code::stale, "buffer was closed while it was being imported"}; }

}  // namespace

void Grants::answer(MessageType type, std::uint64_t request, const Status& status, Bytes bytes, std::vector<UniqueFd> fds) {
  const wire::Answer m{request, status.code(), std::string(status.message()), std::move(bytes)};
  const Status sent = peer_.send_control(type, encode(m), std::move(fds));
  if (sent.ok() || peer_.phase() != PeerPhase::ready || !status.ok()) return;
  // It cannot be told the answer (descriptors do not cross hosts, ...): it learns that much, and may ask for another transport.
  if (type == wire::imported) on_release(request);
  const wire::Answer refusal{request, Code::unsupported, std::string(sent.message()), {}};
  static_cast<void>(peer_.send_control(type, encode(refusal)));
}

void Grants::on_import(const wire::Import& m) {
  const auto refuse = [&](const Status& status) { answer(wire::imported, m.request, status); };
  if (granted_.contains(m.request)) return peer_.broken("an import number twice");
  if (granted_.size() + registering_ >= max_grants)
    return refuse(Status(Code::out_of_memory, "more than " + std::to_string(max_grants) + " imports held by one peer"));
  if (peer_.phase() == PeerPhase::closed) return refuse(peer_.failure());
  auto resolved = peer_.impl().exports().resolve(m);
  if (!resolved.ok()) return refuse(resolved.status());
  const auto exposure = std::move(*resolved);
  EndpointSlot* slot = peer_.connections().find(m.transport);
  if (slot == nullptr || slot->state == EndpointSlot::State::failed)
    return refuse(Status(Code::transport, "there is no " + m.transport + " connection to import through"));
  Transport* transport = slot->transport().transport.get();
  if (const auto* region = exposure->registration->find(transport)) return finish_import(m, exposure, **region);
  // Registering may pin memory for seconds: not under the lock, and not on the caller's time.
  const Status begun = peer_.impl().regions().worker().run(
      [this, keep = peer_.shared_from_this(), m, exposure, transport, held = exposure->registration]() mutable {
        ContextImpl& context = peer_.impl();
        auto made = context.regions().make(*held, *transport, Deadline::never());
        const auto lock = context.engine()->lock();
        const auto region = std::move(made);  // a region ends with the lock held
        const auto registration = held;
        context.engine()->retire(std::move(held));  // perhaps the last reference to user memory
        --registering_;
        if (peer_.phase() != PeerPhase::ready) return;
        if (!region.ok()) return answer(wire::imported, m.request, region.status());
        if (exposure->closed.load()) return answer(wire::imported, m.request, closed_meanwhile());
        finish_import(m, exposure, registration->add(transport, *region));
        context.engine()->kick();
      });
  if (begun.ok()) ++registering_;
  if (begun.code() == Code::out_of_memory) refuse(begun);
}

void Grants::finish_import(const wire::Import& m, const std::shared_ptr<Exposure>& exposure, LocalRegion& region) {
  if (exposure->closed.load()) return answer(wire::imported, m.request, closed_meanwhile());
  auto blob = region.exported();
  if (!blob.ok()) return answer(wire::imported, m.request, blob.status());
  if (!granted_.emplace(m.request, Grant{exposure, &region}).second) return peer_.broken("an import number twice");
  exposure->registration->grant(&region);
  ++exposure->importers[&peer_];
  answer(wire::imported, m.request, {}, std::move(blob->bytes), std::move(blob->fds));
}

// Takes one off its buffer, and returns that if the peer has no other of it.
std::shared_ptr<Exposure> Grants::end(const Grant& grant) {
  Exposure& exposure = *grant.exposure;
  exposure.registration->end_grant(grant.region);
  const auto importer = exposure.importers.find(&peer_);
  if (importer == exposure.importers.end() || --importer->second != 0) return nullptr;
  exposure.importers.erase(importer);
  return grant.exposure;
}

void Grants::end_if(const std::function<bool(const Grant&)>& which) {
  std::vector<std::shared_ptr<Exposure>> exposures;
  std::erase_if(granted_, [&](const auto& item) {
    if (!which(item.second)) return false;
    if (auto exposure = end(item.second)) exposures.push_back(std::move(exposure));
    return true;
  });
  for (const auto& exposure : exposures) peer_.impl().exports().settle(exposure);
}

void Grants::on_release(std::uint64_t request) {
  const auto found = granted_.find(request);
  if (found == granted_.end()) return;  // crossed by a revocation
  const auto exposure = end(found->second);
  granted_.erase(found);
  peer_.impl().engine()->wake_waiters();  // an eviction may wait for it
  if (exposure) peer_.impl().exports().settle(exposure);
}

void Grants::revoke(const Exposure& exposure) {
  static_cast<void>(peer_.send_control(wire::revoke, encode(wire::BufferName{exposure.id, exposure.generation})));
}

void Grants::on_revoked(const wire::BufferName& name) {
  end_if([&](const Grant& grant) {
    const Exposure& one = *grant.exposure;
    return one.id == name.buffer_id && one.generation == name.generation && one.closed.load();
  });
}

void Grants::withdraw(const Registration& registration, const LocalRegion* region) {
  for (const auto& [request, grant] : granted_) {
    if (grant.exposure->registration.get() != &registration || grant.region != region) continue;
    static_cast<void>(peer_.send_control(wire::withdraw, wire::encode_request(request)));
  }
}

bool Grants::may_access(const Grant& grant) const noexcept { return peer_.identity().same_host && grant.region->peer_moves(); }

bool Grants::accessible() const noexcept {
  return std::ranges::any_of(granted_, [&](const auto& item) { return may_access(item.second); });
}

void Grants::drop(bool all) {
  lookups_.clear();
  end_if([&](const Grant& grant) { return all || !may_access(grant); });
}

void Grants::keep(std::vector<std::shared_ptr<const void>>& kept) const {
  for (const auto& [request, grant] : granted_) kept.push_back(grant.exposure->registration);
}

// ---- lookups ----

void Grants::on_lookup(const wire::Lookup& m) {
  if (peer_.phase() == PeerPhase::closed) return answer(wire::found, m.request, peer_.failure());
  if (m.name.empty() || lookups_.size() >= max_lookups) {
    return answer(
        wire::found, m.request,
        Status(Code::invalid_argument, "an empty name, or more than " + std::to_string(max_lookups) + " lookups at once"));
  }
  if (const auto found = peer_.impl().exports().find(m.name)) {
    answer(wire::found, m.request, {}, found->serialise());
  } else {
    lookups_.emplace(m.request, m.name);
  }
}

void Grants::publish(std::string_view name, const Bytes& descriptor) {
  std::vector<std::uint64_t> requests;
  std::erase_if(lookups_, [&](const auto& item) {
    if (item.second != name) return false;
    requests.push_back(item.first);
    return true;
  });
  for (const std::uint64_t request : requests) answer(wire::found, request, {}, descriptor);
}

}  // namespace hmc
