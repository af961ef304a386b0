#include "comm/routing/peer_routes.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"
#include "comm/routing/paths.h"

namespace hmc {
namespace {

std::string rate_text(const Reach& reach) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g us, %.3g GB/s", reach.latency_us, reach.bandwidth / 1e9);
  return text;
}

}  // namespace

std::optional<PeerDomain> PeerRoutes::domain_of(std::string_view transport_name) const noexcept {
  const auto found = std::ranges::find(domains_, transport_name, &wire::Hello::TransportDomain::name);
  if (found == domains_.end()) return std::nullopt;
  const bool self = peer_.is_self();
  PeerDomain result;
  result.same_process = self;
  result.same_host = self || peer_.identity().same_host;
  result.pid = self ? getpid() : peer_.identity().pid;
  result.domain = found->domain;
  return result;
}

std::vector<PeerRoutes::Candidate> PeerRoutes::rank(const Device& local, const Device& remote, TransportSet refused,
                                                    std::vector<std::string>& rejected, std::vector<Candidate>* resting) {
  std::vector<Candidate> candidates;
  for (const auto& slot : context_.transports()) {
    const auto reject = [&](const std::string& why) { rejected.push_back(slot->name + ": " + why); };
    if (slot->self_only && !peer_.is_self()) {
      reject("left out by transports \"" + context_.options().transports + "\"");
      continue;
    }
    if (!slot->transport || !slot->capabilities.available) {
      reject("not available here (" + slot->capabilities.reason + ")");
      continue;
    }
    const auto domain = domain_of(slot->name);
    if (!domain) {
      reject("the peer does not offer it");
      continue;
    }
    if ((slot->bit & refused) != 0) {
      reject("does not reach this memory");
      continue;
    }
    if (slot->on_carriers && local.is_cpu() && remote.is_cpu()) {
      reject("for memory of devices; CPU memory goes by what it builds on");
      continue;
    }
    Reach reach = slot->transport->reach(*domain, local, remote);
    if (!reach.ok) {
      reject(reach.reason);
      continue;
    }
    if (!reach.direct && context_.options().direct_only) {
      reject("staged, which policy=\"direct\" forbids");
      continue;
    }
    const EndpointSlot* known = peer_.connections().find(slot->name);
    if (known != nullptr && (known->state == EndpointSlot::State::failed || known->being_retried())) {
      reject(known->trouble());
      if (resting != nullptr && known->backoff.used()) resting->push_back({slot.get(), std::move(reach)});
      continue;
    }
    candidates.push_back({slot.get(), std::move(reach)});
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), [](const Candidate& each) { return each.reach.bandwidth; });
  return candidates;
}

Result<Route*> PeerRoutes::find(const Device& local, const Device& remote, TransportSet refused) {
  for (const auto& route : routes_) {
    if (route->path.source == local && route->path.target == remote && route->without == refused) return route.get();
  }
  if (!peer_.carries()) {
    if (!peer_.failure().ok()) return peer_.failure();
    return Status(Code::would_block, peer_.describe() + " is not ready");
  }
  std::vector<std::string> rejected;
  std::vector<Candidate> resting;
  const auto candidates = rank(local, remote, refused, rejected, &resting);
  if (candidates.empty()) {
    if (peer_.connections().wake_resting(resting) != nullptr)
      return Status(Code::would_block, "the connection that failed is being made again");
    return none(local, remote, rejected, !resting.empty());
  }
  const Candidate& best = candidates.front();
  EndpointSlot* slot = peer_.connections().find(best.transport->name);
  if (slot == nullptr) {
    slot = peer_.connections().open(*best.transport, 0);
    if (peer_.is_self() && slot->state == EndpointSlot::State::waiting) peer_.connections().connect_self(*slot);
  }
  if (slot->state == EndpointSlot::State::failed) return find(local, remote, refused);  // now among the rejected
  if (slot->state != EndpointSlot::State::ready)
    return Status(Code::would_block, "the " + best.transport->name + " endpoint is being made");
  return &add(local, remote, refused, candidates, std::move(rejected), *slot);
}

Status PeerRoutes::none(const Device& local, const Device& remote, const std::vector<std::string>& rejected, bool resting) const {
  std::string message = "no transport moves " + local.str() + " to " + remote.str() + " of " + peer_.describe() + ":";
  for (const auto& reason : rejected) message += "\n  " + reason;
  return {resting ? Code::transport : Code::unsupported, std::move(message)};
}

Route& PeerRoutes::add(const Device& local, const Device& remote, TransportSet refused, const std::vector<Candidate>& candidates,
                       std::vector<std::string> rejected, EndpointSlot& slot) {
  const Candidate& best = candidates.front();
  Route& route = *routes_.emplace_back(std::make_unique<Route>());
  route.transport = best.transport->transport.get();
  route.bit = best.transport->bit;
  route.without = refused;
  route.endpoint = slot.endpoint.get();
  route.slot = &slot;
  route.staged = !best.reach.direct;
  Path& path = route.path;
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
  if (candidates.size() > 1) {
    path.runner_up = candidates[1].transport->name;
    path.reason += (path.reason.empty() ? "" : "; ") + std::string("best of ") + std::to_string(candidates.size());
  }
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    rejected.push_back(candidates[i].transport->name + ": slower (" + rate_text(candidates[i].reach) + " against " +
                       rate_text(best.reach) + ")");
  }
  path.rejected = std::move(rejected);
  if (peer_.is_self() || peer_.identity().same_host) path.hardware_bandwidth = hardware_bandwidth(local, remote);
  // Otherwise it was asked for, or next() has warned.
  if (context_.options().transports.empty() && refused == 0) warn_if_poor(path);
  return route;
}

Result<Route*> PeerRoutes::find_by(const Device& local, const Device& remote, std::string_view transport_name) {
  TransportSet better = buffers_only(local, remote);
  HMC_ASSIGN(Route * best, find(local, remote, better));
  if (best->path.transport == transport_name) return best;
  std::vector<std::string> rejected;
  for (const Candidate& candidate : rank(local, remote, better, rejected)) {
    if (candidate.transport->name == transport_name) return find(local, remote, better);
    better |= candidate.transport->bit;
  }
  return Status(Code::unsupported,
                "this side would send by " + best->path.transport + ", the receiver asks for " + std::string(transport_name));
}

Result<Route*> PeerRoutes::next(const Route& failed, TransportSet refused, const Status& reason) {
  const Path& path = failed.path;
  auto next = find(path.source, path.target, refused);
  if (next.status().code() == Code::unsupported) {
    const char* direct = context_.options().direct_only ? "; policy=\"direct\" forbids to stage it; " : "; ";
    return Status(reason.code(), std::string(reason.message()) + direct + std::string(next.status().message()), reason.native());
  }
  context_.counters().add("routes.refused." + path.transport, 1);
  warn_once("refused " + path.transport + path.source.str() + path.target.str(),
            path.transport + " between " + path.source.str() + " and " + path.target.str() + " of " + peer_.describe() +
                " does not reach some memory (" + std::string(reason.message()) +
                "); the next transport moves it, more slowly. policy=\"direct\" makes that an error where it is staged");
  return next;
}

TransportSet PeerRoutes::buffers_only(const Device& local, const Device& remote) {
  for (const auto& [from, to, transports] : buffers_only_) {
    if (from == local && to == remote) return transports;
  }
  TransportSet found = 0;
  for (const auto& slot : context_.transports()) {
    const auto domain = domain_of(slot->name);
    if (!slot->transport || !domain) continue;
    const Reach reach = slot->transport->reach(*domain, local, remote);
    if (reach.ok && !reach.transient) found |= slot->bit;
  }
  if (peer_.phase() == PeerPhase::ready) buffers_only_.emplace_back(local, remote, found);
  return found;
}

void PeerRoutes::changed() {
  ++epoch_;
  if (actions_.empty()) return;
  context_.engine()->defer([actions = std::exchange(actions_, {})] {
    for (const auto& action : actions) action();
  });
}

void PeerRoutes::signalled_by(std::string_view transport_name) noexcept {
  if (EndpointSlot* const slot = peer_.connections().find(transport_name); slot != nullptr) slot->notified = true;
}

void PeerRoutes::retire(const EndpointSlot* slot) {
  for (auto& route : routes_) {
    if (slot == nullptr || route->slot == slot) old_routes_.push_back(std::move(route));
  }
  std::erase(routes_, nullptr);
}

void PeerRoutes::clear() noexcept {
  routes_.clear();
  old_routes_.clear();
}

}  // namespace hmc
