#include "transport/verbs/rail_keeper.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/log.h"

namespace hmc::verbs {
namespace {

constexpr auto steady = std::chrono::seconds(60);  // a rail that has lasted so long is as good as new
constexpr double first_pause_seconds = 1;          // before a rail is offered again
constexpr unsigned doublings = 5;
constexpr unsigned looks = 4;  // in vain, until a rail is given up

bool same_network(const PortInfo& left, const PortInfo& right) noexcept {
  return left.ethernet == right.ethernet && (!left.ethernet || is_ipv4(left.gid) == is_ipv4(right.gid));
}

}  // namespace

Status RailKeeper::open(const std::vector<Nic*>& nics, std::uint32_t number) {
  HMC_TRY(memory_.allocate(static_cast<unsigned>(nics.size())));
  for (Nic* nic : nics) {
    const std::uint64_t id = std::uint64_t{number} << 32 | std::uint64_t{rails_.size()} << Rail::index_shift;
    auto rail = Rail::create(*nic, id, slots + memory_.notes());
    if (!rail.ok() && rails_.size() == 0) return rail.status();
    if (!rail.ok()) break;  // as many as the card has room for
    (*rail)->rank = last_rank_ = static_cast<std::uint32_t>(rails_.size());
    rails_.add(std::move(*rail));
  }
  for (const auto& rail : rails_) {
    HMC_ASSIGN(rail->keys, memory_.register_with(rail->nic));
    rail->own.sink = rail->keys.peer_sink;
  }
  return {};
}

Status RailKeeper::connect(const Address& peer) {
  memory_.peer_sink = peer.sink;
  rails_.keep(peer.rails.size());
  std::vector<Status> failures;
  for (const auto& rail : rails_) {
    rail->peer = peer.rails[rail->index()];
    failures.push_back(connect(*rail));
    HMC_TRY(Status(failures.front()));
  }
  const auto order = [](const RailAddress& end) { return std::tie(end.sequence, end.outbound, end.port.gid); };
  leads_ = order(rails_[0].own) > order(rails_[0].peer);
  for (std::size_t i = 1; i < failures.size(); ++i) {
    if (!failures[i].ok()) lose(rails_[i], failures[i]);
  }
  return {};
}

Status RailKeeper::connect(Rail& rail) {
  if (!same_network(rail.peer.port, rail.own.port)) {
    return Status(Code::transport,
                  rail.nic.name() + " and the peer's port speak different networks (InfiniBand, RoCE over IPv4 or IPv6)");
  }
  if (rails_.size() > 1) HMC_TRY(post_receives(rail, memory_.notes()));
  if (rail.index() == 0) HMC_TRY(ready_for_messages());
  return rail.connect(shared_.patience);
}

// No card touches the memory of any operation afterwards.
void RailKeeper::stop() {
  stopped_ = true;
  for (Engine::TimerId* timer : {&return_timer_, &watch_timer_}) {
    const Engine::TimerId set = std::exchange(*timer, 0);
    if (set != 0 && !shared_.engine->forked()) shared_.engine->cancel_timer(set);
  }
  for (const auto& rail : rails_) rail->stop();
}

Status RailKeeper::post_receives(Rail& rail, unsigned count) {
  for (; count != 0; --count) {
    HMC_TRY(rail.post_receive(memory_.free_receives.back(), memory_));
    memory_.free_receives.pop_back();
  }
  return {};
}

// Receives for the peer's signals on the rail by which they will come next.
Status RailKeeper::ready_for_messages() {
  Rail* const first = rails_.first_live();
  if (first == nullptr || first->in.messages || memory_.free_receives.size() < slots) return {};
  first->in.messages = true;
  return post_receives(*first, slots);
}

void RailKeeper::restart_outbound(Rail& rail) {
  ++rail.out.generation;
  Status status = rail.out.pair->restart();
  if (status.ok()) status = rail.connect_outbound(shared_.patience);
  if (!status.ok()) return lose(rail, status);
  rail.out.broken = false;
  rail.out.probe = true;
}

void RailKeeper::on_receive_done(Rail& rail, unsigned slot, bool good) {
  if (!rail.up()) {
    memory_.free_receives.push_back(slot);
    if (rail.state == Rail::State::draining && rail.in.posted == 0) drained(rail);
    return;
  }
  if (good && !rail.in.broken) {
    if (const Status posted = rail.post_receive(slot, memory_); !posted.ok()) {
      memory_.free_receives.push_back(slot);
      lose(rail, posted);
    }
    return;
  }
  // Else the peer reached for memory that is not (any more) there for it. Nothing that it sent behind that has been executed.
  rail.in.broken = rail.in.broken || !good;
  rail.in.returned.push_back(slot);
  if (rail.in.posted != 0) return;
  ++rail.in.generation;
  rail.in.broken = false;
  Status status = rail.in.pair->restart();
  for (const unsigned each : std::exchange(rail.in.returned, {})) {
    if (status.ok()) status = rail.post_receive(each, memory_);
    if (!status.ok()) memory_.free_receives.push_back(each);  // for the rail that takes over
  }
  if (status.ok()) status = rail.connect_inbound(shared_.patience);
  if (!status.ok()) lose(rail, status);
}

bool RailKeeper::submit(Rail& rail, Batch& batch) {
  const Status submitted = rail.submit(batch);
  if (submitted.ok()) watch();
  if (!submitted.ok()) lose(rail, submitted);
  return submitted.ok();
}

// ---- how a rail is left ----

void RailKeeper::lose(Rail& rail, const Status& reason) {
  if (stopped_ || !rail.up()) return;
  if (rail.live() && rails_.live() == 1) return owner_.on_over(reason);
  if (rail.live()) {
    log(LogLevel::warning, "one of " + std::to_string(rails_.size()) + " verbs connections to a peer is given up (" +
                               std::string(reason.message()) + "); the others take its share");
    if (std::chrono::steady_clock::now() - *rail.joined_at >= steady) rail.attempts = 0;
  }
  rail.state = Rail::State::draining;
  rail.out.pair.reset();  // it reads and writes no memory here any more
  for (const unsigned slot : std::exchange(rail.in.returned, {})) memory_.free_receives.push_back(slot);
  // What had arrived is in the completion queue; the other receives come back behind it.
  if (rail.in.posted == 0) return drained(rail);
  if (const Status flushed = rail.in.pair->flush(); !flushed.ok()) return owner_.on_over(flushed);
  watch();
}

void RailKeeper::drained(Rail& rail) {
  rail.in.pair.reset();
  rail.state = Rail::State::left;
  if (const Status ready = ready_for_messages(); !ready.ok()) return owner_.on_over(ready);
  rails_.announce(rail);
  if (rail.peer_left) decide(rail);
}

void RailKeeper::decide(Rail& rail) {
  rail.state = Rail::State::gone;
  owner_.on_gone(rail);
  if (!stopped_) plan_return(rail);
}

bool RailKeeper::on_message(const MessageHead& head, ByteSpan body) {
  if (head.kind == MessageKind::rail_up) return on_offer(head, body);
  Rail& rail = rails_[head.rail];
  if (head.life != rail.life) return true;  // told before
  if (std::exchange(rail.peer_left, true)) return true;
  lose(rail, Status(Code::transport, rail.nic.name() + ": the peer has left it"));
  if (!stopped_ && rail.state == Rail::State::left) decide(rail);
  return !stopped_;
}

// ---- how it comes back ----

void RailKeeper::plan_return(const Rail& rail) {
  if (!leads_ || return_timer_ != 0) return;
  const double pause = first_pause_seconds * (1U << std::min(rail.attempts, doublings));
  return_timer_ = shared_.engine->at(Deadline::after_seconds(pause), [this] {
    return_timer_ = 0;
    offer_rails();
  });
}

void RailKeeper::offer_rails() {
  const auto keep = owner_.hold();
  for (std::size_t i = 0; i < rails_.size() && !stopped_; ++i) {
    Rail& gone = rails_[i];
    if (gone.state != Rail::State::gone) continue;
    ++gone.attempts;
    if (!gone.nic.active() || !renew(i, static_cast<std::uint16_t>(gone.life + 1), ++last_rank_).ok()) {
      plan_return(gone);
      continue;
    }
    rails_.announce(rails_[i]);
  }
  if (!stopped_) owner_.advance();
}

// This end of the rail's next life.
Status RailKeeper::renew(std::size_t index, std::uint16_t life, std::uint32_t rank) {
  if (memory_.free_receives.size() < memory_.notes())
    return Status(Code::out_of_memory, "no room for the messages of another rail");
  HMC_ASSIGN(auto rail, Rail::renew(rails_[index], life, rank, slots + memory_.notes()));
  const auto free = memory_.free_receives;
  if (Status posted = post_receives(*rail, memory_.notes()); !posted.ok()) {
    rail.reset();  // its queue pair ends, and with it what was posted
    memory_.free_receives = free;
    return posted;
  }
  rails_.replace(std::move(rail));
  return {};
}

// False: the link is over.
bool RailKeeper::on_offer(const MessageHead& head, ByteSpan body) {
  const auto offer = decode_offer(body);
  Rail* rail = &rails_[head.rail];
  const bool answer = leads_ && head.life == rail->life;
  const bool next = !leads_ && head.life == static_cast<std::uint16_t>(rail->life + 1);
  if (offer.ok() && !answer && !next) return true;  // told before
  if (!offer.ok() || offer->address.port.nic != rail->peer.port.nic || (next && rail->state != Rail::State::gone)) {
    owner_.on_over(Status(Code::protocol, "the peer offered a verbs connection that cannot be"));
    return false;
  }
  if (answer && rail->state != Rail::State::offered) return true;
  if (next) {
    last_rank_ = offer->rank;
    if (!renew(head.rail, head.life, offer->rank).ok()) {
      rail->life = head.life;  // the leader is told that it has been left at once
      rails_.announce(*rail);
      return true;
    }
    rail = &rails_[head.rail];
  }
  rail->state = Rail::State::joining;
  rail->peer = offer->address;
  if (const Status status = rail->connect(shared_.patience); !status.ok()) {
    lose(*rail, status);
  } else if (next) {
    rails_.announce(*rail);
  } else {
    rail->out.probe = true;
  }
  return !stopped_;
}

void RailKeeper::join(Rail& rail) {
  rail.state = Rail::State::live;
  rail.joined_at = std::chrono::steady_clock::now();
  log(LogLevel::warning, "a verbs connection to a peer that was given up carries again (" + rail.nic.name() + ")");
  // What the peer was told of others went by rails that may fail before it arrives. Told twice, it is ignored.
  for (const auto& other : rails_) {
    if (!other->live()) rail.out.to_announce.push_back(static_cast<std::uint8_t>(other->index()));
  }
}

// ---- a card that neither finishes nor fails what it was given ----

void RailKeeper::watch() {
  if (watch_timer_ != 0) return;
  watch_timer_ = shared_.engine->at(Deadline::after_seconds(shared_.silence_seconds / looks), [this] {
    watch_timer_ = 0;
    look();
  });
}

void RailKeeper::look() {
  const auto keep = owner_.hold();
  bool any = false;
  for (std::size_t i = 0; i < rails_.size() && !stopped_; ++i) {
    Rail& rail = rails_[i];
    const bool draining = rail.state == Rail::State::draining;
    if (draining ? !rail.joined_at : !rail.up() || rail.out.posted() == 0) continue;
    any = true;
    Rail::Look now{rail.state, rail.out.generation, rail.out.oldest, draining ? rail.in.posted : 0, rail.look.in_vain};
    if (now != rail.look) now.in_vain = 0;
    rail.look = now;
    if (rail.look.in_vain++ < looks) continue;
    const Status reason(Code::peer_lost, rail.nic.name() +
                                             ": the network card has neither finished nor failed what it was given for " +
                                             std::to_string(static_cast<int>(shared_.silence_seconds)) + " s (HMC_VERBS_SILENCE)");
    // What a card that gives no receives back has acknowledged may never be told here. Only the whole link's end counts signals
    // anew.
    draining ? owner_.on_over(reason) : lose(rail, reason);
  }
  if (stopped_) return;
  if (any) watch();
  owner_.advance();
}

}  // namespace hmc::verbs
