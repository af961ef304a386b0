// PeerImpl: endpoints and routes.
//
// Endpoints are made symmetrically: whoever needs one first makes it and sends its address; the other side makes its own on seeing
// that; each connects once it has the other's address, and says ready (or failed) when it has. Both may start at once.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "comm/context_impl.h"
#include "comm/paths.h"
#include "comm/peer_impl.h"

namespace hmc {

void EndpointSlot::on_signal(ByteSpan signal) { peer_.on_signal(*this, signal); }
void EndpointSlot::on_failed(const Status& reason) { peer_.on_endpoint_failed(*this, reason); }
void EndpointSlot::complete(Status status) noexcept { peer_.on_connected(*this, status); }

namespace {

std::string rate_text(const Reach& reach) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g us, %.3g GB/s", reach.latency_us, reach.bandwidth / 1e9);
  return text;
}

}  // namespace

const Bytes* PeerImpl::domain_of(std::string_view transport_name) const noexcept {
  for (const auto& domain : domains_) {
    if (domain.name == transport_name) return &domain.domain;
  }
  return nullptr;
}

PeerDomain PeerImpl::peer_domain(const Bytes& domain) const noexcept {
  PeerDomain result;
  result.same_process = self_;
  result.same_host = self_ || identity_.same_host;
  result.pid = self_ ? getpid() : identity_.pid;
  result.domain = domain;
  return result;
}

// Usable transports between the two devices, best first: by bandwidth, then by the order of the table. The others end in
// `rejected`.
std::vector<PeerImpl::Candidate> PeerImpl::rank(const Device& local, const Device& remote, TransportSet refused,
                                                std::vector<std::string>& rejected, std::vector<Candidate>* resting) {
  std::vector<Candidate> candidates;
  for (const auto& slot : context_.transports()) {
    if (slot->self_only && !self_) {
      rejected.push_back(slot->name + ": left out by transports \"" + context_.options().transports + "\"");
      continue;
    }
    if (!slot->transport || !slot->capabilities.available) {
      rejected.push_back(slot->name + ": not available here (" + slot->capabilities.reason + ")");
      continue;
    }
    const Bytes* domain = domain_of(slot->name);
    if (domain == nullptr) {
      rejected.push_back(slot->name + ": the peer does not offer it");
      continue;
    }
    if ((slot->bit & refused) != 0) {
      rejected.push_back(slot->name + ": does not reach this memory");
      continue;
    }
    if (slot->on_carriers && local.is_cpu() && remote.is_cpu()) {
      rejected.push_back(slot->name + ": for memory of devices; CPU memory goes by what it builds on");
      continue;
    }
    Reach reach = slot->transport->reach(peer_domain(*domain), local, remote);
    if (!reach.ok) {
      rejected.push_back(slot->name + ": " + reach.reason);
      continue;
    }
    if (!reach.direct && context_.options().direct_only) {
      rejected.push_back(slot->name + ": staged, which policy=\"direct\" forbids");
      continue;
    }
    const EndpointSlot* known = find_slot(slot->name);
    if (known != nullptr && (known->state == EndpointSlot::State::failed || known->being_retried())) {
      rejected.push_back(slot->name + ": " + known->trouble());
      if (resting != nullptr && known->used) resting->push_back({slot.get(), std::move(reach)});
      continue;
    }
    candidates.push_back({slot.get(), std::move(reach)});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.reach.bandwidth > b.reach.bandwidth; });
  return candidates;
}

EndpointSlot* PeerImpl::find_slot(std::string_view transport_name) noexcept {
  for (const auto& slot : slots_) {
    if (slot->transport().name == transport_name) return slot.get();
  }
  return nullptr;
}

Endpoint* PeerImpl::endpoint(std::string_view transport_name) noexcept {
  EndpointSlot* slot = find_slot(transport_name);
  return slot != nullptr && slot->state == EndpointSlot::State::ready ? slot->endpoint.get() : nullptr;
}

// Makes this side's endpoint and sends its address. Always returns a slot; its state is failed when that did not work.
EndpointSlot* PeerImpl::open_endpoint(TransportSlot& transport, std::uint32_t attempt) {
  EndpointSlot& slot = next_slot(transport, attempt);
  const auto open = [&]() -> Status {
    const Bytes* domain = domain_of(transport.name);
    if (domain == nullptr) return Status(Code::unsupported, "the peer does not offer " + transport.name);
    HMC_ASSIGN(slot.endpoint, transport.transport->create_endpoint(peer_domain(*domain), slot));
    HMC_ASSIGN(Blob address, slot.endpoint->address());
    if (self_) return {};
    wire::Address m{transport.name, attempt, std::move(address.bytes)};
    return send_control(wire::address, encode(m), std::move(address.fds));
  };
  if (const Status opened = open(); !opened.ok()) slot_failed(slot, opened, true);
  return &slot;
}

void PeerImpl::connect_self(EndpointSlot& slot) {
  slot.state = EndpointSlot::State::connecting;
  // Its own address once more: the first may have been consumed.
  auto address = slot.endpoint->address();
  Status status = address.status();
  if (address.ok()) status = slot.endpoint->connect(*address, &slot);
  if (!status.ok()) slot_failed(slot, status, false);
}

void PeerImpl::on_address(const wire::Address& address, std::vector<UniqueFd> fds) {
  if (leaving_) return;
  EndpointSlot* slot = find_slot(address.transport);
  if (slot != nullptr && address.attempt < slot->attempt()) return;  // it has failed here meanwhile, which the peer knows by now
  const bool anew = slot != nullptr && slot->state == EndpointSlot::State::failed && address.attempt > slot->attempt();
  if (slot == nullptr || anew) {
    TransportSlot* transport = context_.find_transport(address.transport);
    if (transport == nullptr || !transport->transport || !transport->capabilities.available || transport->self_only) {
      const wire::EndpointNote note{address.transport, address.attempt, Code::unsupported, "not in use here"};
      static_cast<void>(send_control(wire::endpoint_failed, encode(note)));
      return;
    }
    slot = open_endpoint(*transport, address.attempt);
    // Until ready, the accepting side's addresses are those of the message transport it tries.
    if (phase_ == PeerPhase::connecting && !accepting_ && slot->state != EndpointSlot::State::failed) message_slot_ = slot;
  }
  if (slot->state == EndpointSlot::State::failed) return choose_messages_if_none();  // it has been told
  if (slot->state != EndpointSlot::State::waiting || slot->attempt() != address.attempt)
    return broken("an unexpected endpoint address");
  slot->state = EndpointSlot::State::connecting;
  const Blob blob{address.bytes, std::move(fds)};
  if (const Status started = slot->endpoint->connect(blob, slot); !started.ok()) slot_failed(*slot, started, true);
  choose_messages_if_none();  // the peer was quicker to make it anew
}

void PeerImpl::on_connected(EndpointSlot& slot, const Status& status) {
  if (slot.state != EndpointSlot::State::connecting) return;  // given up meanwhile
  if (!status.ok()) {
    slot_failed(slot, status, true);
    return;
  }
  slot.connected = true;
  if (self_) {
    slot.peer_ready = true;
  } else {
    send_note(slot, {});
  }
  maybe_ready(slot);
}

void PeerImpl::send_note(const EndpointSlot& slot, const Status& status) {
  const wire::EndpointNote note{slot.transport().name, slot.attempt(), status.code(), std::string(status.message())};
  static_cast<void>(send_control(status.ok() ? wire::endpoint_ready : wire::endpoint_failed, encode(note)));
}

void PeerImpl::on_endpoint_note(const wire::EndpointNote& note, bool ready) {
  EndpointSlot* slot = find_slot(note.transport);
  if (slot == nullptr && !ready) {
    // It could not even make its end. The slot is kept, so that this side does not wait for an answer to an address of its own.
    TransportSlot* transport = context_.find_transport(note.transport);
    if (transport == nullptr) return;
    slot = &next_slot(*transport, note.attempt);
  }
  if (slot != nullptr && note.attempt < slot->attempt()) return;  // of one that has failed here meanwhile
  if (slot != nullptr && !ready && note.attempt > slot->attempt() && slot->state == EndpointSlot::State::failed)
    slot = &next_slot(slot->transport(), note.attempt);  // it has tried again, in vain
  if (slot == nullptr || slot->attempt() != note.attempt) return broken("a note about an endpoint it does not have");
  if (slot->state == EndpointSlot::State::failed) return;
  if (slot->state == EndpointSlot::State::ready) {
    if (ready) return;  // its first signal was faster
    return end(Status(Code::peer_lost, "the " + note.transport + " connection to " + describe() + " failed there: " + note.message),
               PeerPhase::lost);
  }
  if (!ready) {
    slot_failed(*slot, Status(note.code == Code::ok ? Code::transport : note.code, "the peer reports: " + note.message), false);
    choose_messages_if_none();
    return;
  }
  slot->peer_ready = true;
  maybe_ready(*slot);
}

void PeerImpl::maybe_ready(EndpointSlot& slot) {
  if (!slot.connected || !slot.peer_ready || slot.state != EndpointSlot::State::connecting) return;
  slot.state = EndpointSlot::State::ready;
  ++route_epoch_;
  restored(slot);
  if (phase_ == PeerPhase::connecting && &slot == message_slot_) become_ready();
  if (&slot == next_message_slot_) resume_messages();
  context_.engine()->wake_waiters();
}

void PeerImpl::on_endpoint_failed(EndpointSlot& slot, const Status& reason) {
  if (slot.state == EndpointSlot::State::failed) return;
  const auto keep = shared_from_this();
  slot_failed(slot, reason, true);
  if (phase_ == PeerPhase::ready) context_.needs_pump(*this);
}

Result<Route*> PeerImpl::route(const Device& local, const Device& remote, TransportSet refused) {
  HMC_ASSIGN(PeerRoute * found, find_route(local, remote, refused));
  return static_cast<Route*>(found);
}

TransportSet PeerImpl::buffers_only(const Device& local, const Device& remote) {
  for (const auto& [from, to, transports] : buffers_only_) {
    if (from == local && to == remote) return transports;
  }
  TransportSet found = 0;
  for (const auto& slot : context_.transports()) {
    const Bytes* domain = domain_of(slot->name);
    if (!slot->transport || domain == nullptr) continue;
    const Reach reach = slot->transport->reach(peer_domain(*domain), local, remote);
    if (reach.ok && !reach.transient) found |= slot->bit;
  }
  if (phase_ == PeerPhase::ready) buffers_only_.emplace_back(local, remote, found);
  return found;
}

Result<Route*> PeerImpl::route_by(const Device& local, const Device& remote, std::string_view transport_name) {
  TransportSet better = buffers_only(local, remote);
  HMC_ASSIGN(PeerRoute * best, find_route(local, remote, better));
  if (best->path.transport == transport_name) return static_cast<Route*>(best);
  std::vector<std::string> rejected;
  for (const Candidate& candidate : rank(local, remote, better, rejected)) {
    if (candidate.transport->name == transport_name) return route(local, remote, better);
    better |= candidate.transport->bit;
  }
  return Status(Code::unsupported,
                "this side would send by " + best->path.transport + ", the receiver asks for " + std::string(transport_name));
}

Result<Route*> PeerImpl::next_route(const Route& failed, TransportSet refused, const Status& reason) {
  const Path& path = failed.path;
  auto next = route(path.source, path.target, refused);
  if (next.status().code() == Code::unsupported) {
    const char* direct = context_.options().direct_only ? "; policy=\"direct\" forbids to stage it; " : "; ";
    return Status(reason.code(), std::string(reason.message()) + direct + std::string(next.status().message()), reason.native());
  }
  context_.count("routes.refused." + path.transport, 1);
  warn_once("refused " + path.transport + path.source.str() + path.target.str(),
            path.transport + " between " + path.source.str() + " and " + path.target.str() + " of " + describe() +
                " does not reach some memory (" + std::string(reason.message()) +
                "); the next transport moves it, more slowly. policy=\"direct\" makes that an error where it is staged");
  return next;
}

// would_block: the best transport's endpoint is being made; ask again when route_epoch() has changed.
Result<PeerRoute*> PeerImpl::find_route(const Device& local, const Device& remote, TransportSet refused) {
  for (const auto& route : routes_) {
    if (route->path.source == local && route->path.target == remote && route->without == refused) return route.get();
  }
  if (phase_ != PeerPhase::ready) {
    if (!failure_.ok()) return failure_;
    return Status(Code::would_block, describe() + " is not ready");
  }
  std::vector<std::string> rejected;
  std::vector<Candidate> resting;
  const auto candidates = rank(local, remote, refused, rejected, &resting);
  if (candidates.empty()) {
    if (wake_resting(resting) != nullptr) return Status(Code::would_block, "the connection that failed is being made again");
    std::string message = "no transport moves " + local.str() + " to " + remote.str() + " of " + describe() + ":";
    for (const auto& reason : rejected) message += "\n  " + reason;
    return Status(resting.empty() ? Code::unsupported : Code::transport, std::move(message));
  }
  const Candidate& best = candidates.front();
  EndpointSlot* slot = find_slot(best.transport->name);
  if (slot == nullptr) {
    slot = open_endpoint(*best.transport, 0);
    if (self_ && slot->state == EndpointSlot::State::waiting) connect_self(*slot);
  }
  if (slot->state == EndpointSlot::State::failed) return find_route(local, remote, refused);  // now among the rejected
  if (slot->state != EndpointSlot::State::ready)
    return Status(Code::would_block, "the " + best.transport->name + " endpoint is being made");

  auto route = std::make_unique<PeerRoute>();
  route->transport = best.transport->transport.get();
  route->bit = best.transport->bit;
  route->without = refused;
  route->endpoint = slot->endpoint.get();
  route->slot = slot;
  route->staged = !best.reach.direct;
  Path& path = route->path;
  path.transport = best.transport->name;
  path.source = local;
  path.target = remote;
  path.direct = best.reach.direct;
  path.encrypted = best.reach.encrypted;
  path.detail = best.reach.detail;
  path.latency_us = best.reach.latency_us;
  path.bandwidth = best.reach.bandwidth;
  path.reason = best.reach.reason;
  if (!best.reach.transient) {
    const auto other = std::ranges::find_if(candidates, [](const Candidate& each) { return each.reach.transient; });
    path.messages = other != candidates.end() ? other->transport->name : "none";
  }
  if (candidates.size() > 1) path.runner_up = candidates[1].transport->name;
  if (candidates.size() > 1)
    path.reason += (path.reason.empty() ? "" : "; ") + std::string("best of ") + std::to_string(candidates.size());
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    rejected.push_back(candidates[i].transport->name + ": slower (" + rate_text(candidates[i].reach) + " against " +
                       rate_text(best.reach) + ")");
  }
  path.rejected = std::move(rejected);
  if (self_ || identity_.same_host) path.hardware_bandwidth = hardware_bandwidth(local, remote);
  // Otherwise it was asked for, or next_route() has told.
  if (context_.options().transports.empty() && refused == 0) warn_if_poor(path);
  return routes_.emplace_back(std::move(route)).get();
}

}  // namespace hmc
