#include "progress/watch.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "progress/futex.h"

namespace hmc {

std::optional<Watch::Nap> Watch::round() {
  Kicks& kicks = core_.kicks;
  Rounds& rounds = core_.rounds;
  const TimePoint begun = Deadline::Clock::now();
  if (core_.unattended.load(std::memory_order_relaxed) != 0) pace_.saw_unattended(begun);
  const bool kicked = kicks.kicked();
  const bool wanted = kicks.watcher_wanted();
  const std::uint64_t driven = core_.drivers.driven();
  const std::uint64_t put_offs = core_.drivers.put_offs();
  const bool present = core_.drivers.present();
  if (present || ((pace_.drivers_came(driven) || pace_.is_put_off(put_offs)) && !wanted)) {
    if (pace_.stand_aside(driven, put_offs, kicked)) kicks.clear();
    const WatchPace::Duration aside = pace_.standby_time(begun);
    const TimePoint cut_from = pace_.cut_from(begun, aside, core_.drivers.departures());
    return standby(Nap{false, begun + aside}, present ? cut_from : TimePoint{});
  }
  pace_.go_ahead(driven, put_offs);
  if (pace_.leaves_to_posts(core_.drivers.posts(), begun)) {
    relax();
    return std::nullopt;
  }
  EngineLock::Lock held;
  if (core_.lock.try_lock()) {
    held = core_.lock.adopt();
  } else {
    if (pace_.looks_again(begun)) {
      relax();
      return std::nullopt;
    }
    held = core_.lock.block();
  }
  pace_.got_lock();
  kicks.answer_as_watcher();
  if (rounds.pollables().armed()) rounds.pollables().disarm();
  const std::uint64_t before = core_.drivers.put_offs();
  const unsigned moved = rounds.run(true);
  pace_.put_itself_off(core_.drivers.put_offs() - before);
  RetiredOwners::Owners owners = core_.retired.take();
  const TimePoint now = Deadline::Clock::now();
  const bool kicked_since = kicks.take_linger();
  pace_.polled(now, (moved & Rounds::pollables_moved) != 0 || kicked_since, (moved & Rounds::descriptors_moved) != 0,
               moved != Rounds::nothing);
  std::optional<Nap> nap;
  std::optional<WatchPace::Duration> backoff;
  if (moved == Rounds::nothing && !pace_.lingers(now)) {
    kicks.clear(std::memory_order_relaxed);  // kick() stores it under the lock
    if (rounds.arm()) {
      pace_.armed();
      nap = Nap{true, std::min(rounds.sources().timers().next(), limit_)};
      core_.role.announce_armed(nap->until);
    } else {
      backoff = pace_.refused(now);
    }
  }
  held.unlock();
  if (!owners.empty()) drop(std::move(owners));
  if (nap) return nap;
  if (backoff) return standby(Nap{true, now + *backoff}, {});
  if (core_.lock.contended()) core_.lock.give_way();
  if (moved == Rounds::nothing) relax();
  return std::nullopt;
}

// Announces a sleep without the lock, then looks again at what would have rung the doorbell had it been announced before.
std::optional<Watch::Nap> Watch::standby(Nap nap, TimePoint cut_from) {
  core_.role.announce_standby(cut_from);
  if (leave_.load() != 0 || (!core_.drivers.present() && (cut_from != TimePoint{} || core_.kicks.watcher_wanted()))) {
    core_.role.stay_awake();
    return std::nullopt;
  }
  nap.until = std::min(nap.until, limit_);
  return nap;
}

void Watch::relax() noexcept {
  if (pace_.spins()) {
    cpu_relax();
  } else {
    const TimePoint before = Deadline::Clock::now();
    sched_yield();
    const TimePoint now = Deadline::Clock::now();
    pace_.yielded(now, now - before);
  }
}

void Watch::drop(RetiredOwners::Owners owners) {
  if (dispatcher_ != nullptr) {
    dispatcher_->dispatch([dropped = std::move(owners)] {});
  } else {
    owners.clear();
  }
}

void Watch::sleep(const Nap& nap) noexcept {
  core_.role.sleep(nap.descriptors ? &core_.rounds.sources().descriptors() : nullptr, nap.until);
}

void Watch::end() {
  core_.role.give_up();
  if (core_.rounds.pollables().armed()) core_.rounds.pollables().disarm();
  core_.rounds.sleepers().wake_one(core_.role);
}

}  // namespace hmc
