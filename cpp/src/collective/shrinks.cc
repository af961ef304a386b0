#include "collective/shrinks.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "collective/group.h"
#include "collective/group_numbers.h"
#include "collective/world.h"

namespace hmc {
namespace {

// Calls of shrink() by which another process may be ahead of this one.
constexpr std::uint32_t max_ahead = 64;
// Agreements that are over: a process that is so many behind learns that this one has left.
constexpr std::size_t max_kept = 4096;

// 0, 1, ... for each.
std::vector<std::uint32_t> numbers_of(const std::vector<std::uint32_t>& processes) {
  std::vector<std::uint32_t> numbers(processes.size());
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

std::uint32_t own_number(const World& world, const std::vector<std::uint32_t>& processes) {
  const auto self = std::ranges::find_if(processes, [&](auto process) { return world.processes()[process].is_self(); });
  return static_cast<std::uint32_t>(self - processes.begin());
}

}  // namespace

std::vector<std::uint32_t> processes_of(const Group& group) {
  std::set<std::uint32_t> seen;
  std::vector<std::uint32_t> processes;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    if (seen.insert(group.rank(r).process).second) processes.push_back(group.rank(r).process);
  }
  return processes;
}

Shrinking::Shrinking(World& world, std::uint64_t group_id, std::uint32_t instance, std::vector<std::uint32_t> processes)
    : world_(world),
      group_id_(group_id),
      instance_(instance),
      processes_(std::move(processes)),
      agreement_(*this, own_number(world, processes_), numbers_of(processes_)) {}

void Shrinking::extend(std::span<const std::uint32_t> processes) {
  processes_.insert(processes_.end(), processes.begin(), processes.end());
  agreement_.extend(static_cast<std::uint32_t>(processes.size()));
}

std::optional<std::uint32_t> Shrinking::number_of(std::uint32_t process) const noexcept {
  const auto found = std::ranges::find(processes_, process);
  return found == processes_.end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(found - processes_.begin()));
}

bool Shrinking::may_be_asked() const noexcept {
  return std::ranges::any_of(processes_, [this](std::uint32_t process) {
    const Process& which = world_.processes()[process];
    return which.alive() && !which.is_self();
  });
}

std::uint64_t Shrinking::new_id(const Roster& roster) const noexcept { return child_id(group_id_, roster.scope, -1); }

bool Shrinking::alive(std::uint32_t process) const { return world_.processes()[processes_[process]].alive(); }

Bytes Shrinking::signed_of(job::Shrink message) const {
  message.group_id = group_id_;
  message.instance = instance_;
  return encode(message);
}

void Shrinking::send(std::uint32_t process, job::Shrink message) {
  const auto peer = world_.processes()[processes_[process]].peer;
  if (!peer) return;
  peer->when_ready([peer, bytes = signed_of(std::move(message))](const Status& ready) {
    if (ready.ok()) static_cast<void>(peer->send_control(control_shrink, bytes));  // its end is noticed by itself
  });
}

void Shrinking::spread(job::Shrink message) {
  const Bytes bytes = signed_of(std::move(message));
  for (const std::uint32_t process : processes_) {
    const auto peer = world_.processes()[process].peer;
    if (peer && !peer->is_self() && peer->phase() == PeerPhase::ready) static_cast<void>(peer->send_control(control_shrink, bytes));
  }
}

std::uint32_t Shrinking::new_scope() { return std::max<std::uint32_t>(random_scope(), world_scope + 1); }

void Shrinking::incomplete(const Status& reason) {
  world_.broke({new_id(agreement_.roster()), job::Breakage::every, reason.with_context("another rank gave up the shrink")});
}

// Those that are over are released beyond a bound, the oldest first.
std::shared_ptr<Shrinking> Shrinks::add(const Key& key, std::vector<std::uint32_t> processes) {
  const auto over = [](const Shrinking& shrinking) {
    const Agreement::State state = shrinking.agreement().state();
    return state == Agreement::State::committed || state == Agreement::State::failed;
  };
  for (std::size_t looked = order_.size(); looked > 0 && order_.size() >= max_kept; --looked) {
    const Key oldest = order_.front();
    order_.pop_front();
    const auto found = all_.find(oldest);
    if (found == all_.end()) continue;
    over(*found->second) ? static_cast<void>(all_.erase(found)) : order_.push_back(oldest);
  }
  order_.push_back(key);
  return all_[key] = std::make_shared<Shrinking>(world_, key.first, key.second, std::move(processes));
}

std::shared_ptr<Shrinking> Shrinks::begin(const Group& group) {
  if (world_.find(group.id()) == nullptr) {  // another thread closes it
    const auto none = std::make_shared<Shrinking>(world_, group.id(), 0, processes_of(group));
    none->agreement().fail(group.open());
    return none;
  }
  const Key key{group.id(), begun_[group.id()]++};
  const auto known = all_.find(key);
  const auto found = known != all_.end() ? known->second : add(key, processes_of(group));
  if (!expelled_.ok()) found->agreement().fail(expelled_);
  found->agreement().begin();
  return found;
}

std::shared_ptr<Shrinking> Shrinks::expect(std::uint64_t id, std::vector<std::uint32_t> processes) {
  const auto known = all_.find({id, 0});
  const auto found = known != all_.end() ? known->second : add({id, 0}, std::move(processes));
  if (!expelled_.ok()) found->agreement().fail(expelled_);
  return found;
}

void Shrinks::on_message(PeerState& peer, std::optional<std::uint32_t> from, ByteSpan payload) {
  const auto message = job::decode_shrink(payload);
  if (!message) return;
  const auto found = from ? find(*message) : nullptr;
  const auto number = found ? found->number_of(*from) : std::nullopt;
  if (number) {
    found->agreement().on_message(*number, *message);
    return world_.engine()->wake_waiters();
  }
  // Also the answer to a newcomer whose table this process never received, because the coordinator died after it sent some.
  if (message->kind != job::ShrinkKind::ask && message->kind != job::ShrinkKind::join) return;
  const job::Shrink answer{job::ShrinkKind::left, {}, message->group_id, message->instance};
  static_cast<void>(peer.send_control(control_shrink, encode(answer)));
}

// Null: it is not of a group that is open here, or of a shrink that ended before.
std::shared_ptr<Shrinking> Shrinks::find(const job::Shrink& message) {
  const Key key{message.group_id, message.instance};
  if (const auto found = all_.find(key); found != all_.end()) return found->second;
  const Group* const group = world_.find(message.group_id);
  const auto begun = begun_.find(message.group_id);
  const std::uint32_t next = begun == begun_.end() ? 0 : begun->second;
  if (group == nullptr || message.instance < next || message.instance - next > max_ahead) return nullptr;
  return add(key, processes_of(*group));
}

void Shrinks::on_gone() {
  if (all_.empty()) return;
  for (const auto& [key, shrinking] : std::map(all_)) shrinking->agreement().on_gone();
  world_.engine()->wake_waiters();
}

void Shrinks::release_ended() {
  std::erase_if(all_, [](const auto& each) {
    const Agreement::State state = each.second->agreement().state();
    return (state == Agreement::State::committed || state == Agreement::State::failed) && !each.second->may_be_asked();
  });
}

void Shrinks::on_expelled(const Status& reason) {
  expelled_ = reason;
  for (const auto& [key, shrinking] : all_) shrinking->agreement().fail(reason);
  world_.engine()->wake_waiters();
}

}  // namespace hmc
