#include "collective/fused/offers.h"

#include <algorithm>

#include "base/env.h"
#include "base/log.h"
#include "base/wire.h"
#include "collective/group.h"
#include "collective/world.h"
#include "comm/routing/local_transports.h"

namespace hmc::fused {
namespace {

// From all peers. Of older ones the memory is dropped, then also that they came.
constexpr std::size_t max_segments = 256, max_received = 4096;

void warn(const Status& why) { warn_once("fused.segment", "reductions among ranks of this host go by messages: " + why.str()); }

}  // namespace

bool Offers::wanted() const { return env_flag("HMC_FUSED", true) && shares_memory(context_); }

bool Offers::may_share(const Group& group) noexcept {
  if (group.size() < 2 || group.size() > max_ranks) return false;
  for (std::uint32_t r = 1; r < group.size(); ++r) {
    if (group.rank(r).identity->kernel != group.rank(0).identity->kernel) return false;
  }
  return true;
}

std::shared_ptr<Segment> Offers::share(const Group& group, bool usable, Deadline deadline, const Group* parent) {
  if (!may_share(group)) return nullptr;
  return group.rank(0).peer->is_self() ? make(group, usable) : take(group, usable, deadline, parent);
}

std::shared_ptr<Segment> Offers::make(const Group& group, bool usable) {
  std::shared_ptr<Segment> segment;
  if (usable && wanted()) {
    auto made = Segment::create(group.size());
    if (made) segment = std::move(*made);
    if (!made) warn(made.status());
  }
  Bytes payload;
  WireWriter(payload).u64(group.id());
  const auto lock = context_.engine()->lock();
  for (const auto& peer : others_of(group)) {
    peer->when_ready([peer, payload, segment](const Status& ready) {
      if (!ready.ok()) return;  // it is noticed as lost
      std::vector<UniqueFd> fds;
      if (segment) fds.push_back(segment->fd().duplicate());
      const bool passed = segment && fds.front() && peer->send_control(control_segment, payload, std::move(fds)).ok();
      if (!passed) static_cast<void>(peer->send_control(control_segment, payload));
    });
  }
  return segment;
}

std::shared_ptr<Segment> Offers::take(const Group& group, bool usable, Deadline deadline, const Group* parent) {
  const auto from = group.rank(0).peer;
  const Key key{from.get(), group.id()};
  const auto gone = [&] {
    return from->phase() == PeerPhase::lost || from->phase() == PeerPhase::closed || gone_.contains(group.id()) ||
           (parent != nullptr && takes_no_collectives(*parent));
  };
  {
    // One that failed and closed before this process knew it as a rank is to be noticed as gone.
    const auto lock = context_.engine()->lock();
    if (from->phase() == PeerPhase::idle) from->when_ready([](const Status&) {});
  }
  context_.engine()->drive(deadline, [&] { return find(key) != received_.end() || gone(); });
  UniqueFd fd;
  {
    const auto lock = context_.engine()->lock();
    if (const auto found = find(key); found != received_.end()) {
      fd = std::move(found->fd);
      received_.erase(found);
    }
  }
  if (!fd || !usable || !wanted()) return nullptr;
  auto segment = Segment::attach(std::move(fd), group.size());
  if (segment) return std::move(*segment);
  warn(segment.status());
  return nullptr;
}

std::vector<Offers::Received>::iterator Offers::find(const Key& key) { return std::ranges::find(received_, key, &Received::key); }

void Offers::on_message(PeerState& peer, ByteSpan payload, std::vector<UniqueFd> fds) {
  WireReader reader(payload);
  const std::uint64_t group = reader.u64();
  if (!reader.finish() || gone_.contains(group)) return;
  if (received_.size() == max_received) received_.erase(received_.begin());
  if (received_.size() >= max_segments) received_[received_.size() - max_segments].fd = UniqueFd();
  received_.push_back({{&peer, group}, fds.empty() ? UniqueFd() : std::move(fds.front())});
  context_.engine()->wake_waiters();
}

void Offers::on_group_gone(std::uint64_t group) {
  gone_.add(group);
  std::erase_if(received_, [&](const Received& one) { return one.key.second == group; });
  context_.engine()->wake_waiters();
}

void Offers::on_peer_gone(const PeerState& peer) {
  std::erase_if(received_, [&](const Received& one) { return one.key.first == &peer; });
}

}  // namespace hmc::fused
