// WatchPace: when the watcher of an engine polls, stands aside, arms every Pollable or backs off. The watcher's thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "hmc/deadline.h"

namespace hmc {

class WatchPace {
 public:
  using Duration = Deadline::Clock::duration;
  using TimePoint = Deadline::Clock::time_point;

  // How long drivers must have been away before the watcher polls: a wait that follows within a tick costs nobody a system call.
  static constexpr auto tick = std::chrono::milliseconds(1);
  // Likewise, at first, where something is unattended, or was until unattended_time ago.
  static constexpr Duration first_standby = std::chrono::microseconds(50);
  static constexpr Duration unattended_time = std::chrono::milliseconds(10);
  // A driver that has driven for so long ends a standby as it leaves. Rings of shorter waits would take up to a tenth of a core.
  static constexpr Duration long_wait = std::chrono::microseconds(500);
  // Polling goes on this long after something moved or was kicked, before every Pollable is armed, where it had last moved at most
  // dense_time before, or where a Pollable cannot be armed ...
  static constexpr auto linger_time = std::chrono::milliseconds(1);
  static constexpr auto dense_time = std::chrono::microseconds(250);
  // ... and else this long: 500 messages a second would cost half a processor, and arrive some 10 us earlier.
  static constexpr auto sparse_linger_time = std::chrono::microseconds(100);
  // After mere descriptor events (heartbeats, above all).
  static constexpr auto descriptor_linger_time = std::chrono::microseconds(50);
  static constexpr unsigned spin_rounds = 100;  // empty ones, before the watcher yields its core
  // Polling does not go on for a while after a yield that took so long: see WaitPolicy::crowded().
  static constexpr auto long_yield = std::chrono::microseconds(50);
  static constexpr auto crowded_time = std::chrono::milliseconds(50);
  // A Pollable that keeps refusing to be armed though nothing moves (a device copies, or its peer is stopped with work half done)
  // is polled ever more rarely: after a fraction of the time that has gone by without a movement, so that whatever it waits for is
  // noticed a percent or two late at most.
  static constexpr unsigned patient_refusals = 4;
  static constexpr int backoff_fraction = 64;
  static constexpr Duration first_backoff = std::chrono::microseconds(20);
  static constexpr unsigned patient_standbys = 2;
  // Who has the lock longer than this is in a system call that moves bytes itself: to look and look would take a processor from
  // what that call sets in motion. Shorter ones are not worth the sleep: over sockets this thread may be the one that receives.
  static constexpr auto lock_patience = std::chrono::microseconds(100);

  // Posting calls look at what they post, and the watcher leaves the lock to them while they follow one another so closely: two
  // threads that take turns at the lock and at the vendor's cost a launch a third more.
  static constexpr auto post_patience = std::chrono::microseconds(15);

  // Whether drivers came since the last call of stand_aside() or go_ahead().
  [[nodiscard]] bool drivers_came(std::uint64_t driven) const noexcept { return driven != driven_; }
  // Whether posts have put the watcher off since then: once in a row, as they poll nothing. `put_offs`: Drivers::put_offs().
  [[nodiscard]] bool is_put_off(std::uint64_t put_offs) const noexcept { return put_offs != put_offs_ && !was_put_off_; }
  // The watcher stands aside for drivers or posts. True once drivers have moved what was kicked for a while: they need not ring
  // whenever one leaves, and the kick may be cleared.
  [[nodiscard]] bool stand_aside(std::uint64_t driven, std::uint64_t put_offs, bool kicked) noexcept {
    was_put_off_ = driven == driven_ && put_offs != put_offs_;
    driven_ = driven;
    put_offs_ = put_offs;
    linger_.until = {};
    empty_rounds_ = 0;
    refusals_ = 0;
    locked_since_ = {};
    if (!kicked) kicked_standbys_ = 0;
    return kicked && ++kicked_standbys_ > patient_standbys;
  }
  // EngineCore::unattended is not 0. A callback often posts the next operation: unattended_time bridges the gap in between.
  void saw_unattended(TimePoint now) noexcept { aside_.unattended_until = now + unattended_time; }
  // How long it stands aside. Where something is unattended it looks soon whether drivers have left, and ever less often, up to a
  // tick, while they come: as long as they do they notice everything, and to wake this thread costs them time.
  [[nodiscard]] Duration standby_time(TimePoint now) noexcept {
    const bool was_cut = now < std::exchange(aside_.until, TimePoint{});
    if (now >= aside_.unattended_until) return tick;
    if (was_cut) return first_standby;
    aside_.until = now + aside_.time;
    return std::exchange(aside_.time, std::min<Duration>(2 * aside_.time, tick));
  }
  // As of when a driver that is here ends the standby of that length as it leaves, so that what is unattended does not wait for its
  // end: once it has driven for long_wait, beside which a ring is cheap. TimePoint{}: never. `departures`: Drivers::departures().
  [[nodiscard]] TimePoint cut_from(TimePoint begun, Duration standby, std::uint64_t departures) noexcept {
    const bool stayed = departures == std::exchange(aside_.departures, departures);
    const bool has_driven_long = std::exchange(aside_.before, standby) >= long_wait && stayed;
    if (aside_.until == TimePoint{} || standby <= long_wait) return {};
    return has_driven_long ? begun : begun + long_wait;
  }
  void go_ahead(std::uint64_t driven, std::uint64_t put_offs) noexcept {
    if (!std::exchange(was_put_off_, false)) aside_.time = first_standby;
    driven_ = driven;
    put_offs_ = put_offs;
  }
  // The watcher's own round has retired owners, as posts do.
  void put_itself_off(std::uint64_t count) noexcept { put_offs_ += count; }
  // `posts`: Drivers::posts().
  [[nodiscard]] bool leaves_to_posts(std::uint64_t posts, TimePoint now) noexcept {
    if (posts != posts_) {
      posts_ = posts;
      posted_at_ = now;
    }
    return now - posted_at_ < post_patience;
  }

  // Another thread has the lock. True: look again; false: block on it.
  [[nodiscard]] bool looks_again(TimePoint now) noexcept {
    if (locked_since_ == TimePoint{}) locked_since_ = now;
    return now - locked_since_ < lock_patience;
  }
  void got_lock() noexcept { locked_since_ = {}; }

  // A round is over. `worked`: Pollables moved or were kicked; `events`: descriptors were ready; `moved`: anything moved.
  void polled(TimePoint now, bool worked, bool events, bool moved) noexcept {
    if (worked) {
      const Duration gap = now - std::exchange(worked_at_, now);
      if (gap >= sparse_linger_time) linger_.time = gap <= dense_time ? Duration(linger_time) : Duration(sparse_linger_time);
      linger_.until = now + linger_.time;
      kicked_standbys_ = 0;
    } else if (events) {
      linger_.until = std::max(linger_.until, now + descriptor_linger_time);
    }
    if (!moved) return;
    empty_rounds_ = 0;
    refusals_ = 0;
    moved_at_ = now;
  }
  [[nodiscard]] bool lingers(TimePoint now) const noexcept { return now < linger_.until && now >= linger_.crowded_until; }
  // The watcher has yielded its core for `elapsed`.
  void yielded(TimePoint now, Duration elapsed) noexcept {
    if (elapsed >= long_yield) linger_.crowded_until = now + crowded_time;
  }

  // After a round without a movement: every Pollable is armed.
  void armed() noexcept { refusals_ = 0; }
  // After a round without a movement: one Pollable refused. What to sleep before the next round.
  [[nodiscard]] std::optional<Duration> refused(TimePoint now) noexcept {
    linger_.until = worked_at_ + linger_time;
    if (lingers(now) || ++refusals_ <= patient_refusals) return std::nullopt;
    return std::clamp<Duration>((now - std::max(moved_at_, worked_at_)) / backoff_fraction, first_backoff, tick);
  }

  // Counts an empty round. True: spin; false: yield the core.
  [[nodiscard]] bool spins() noexcept { return ++empty_rounds_ < spin_rounds; }

 private:
  std::uint64_t driven_ = 0;
  std::uint64_t put_offs_ = 0;
  bool was_put_off_ = false;  // it last stood aside for posts alone
  struct Aside {
    Duration time = first_standby;  // of the next standby, where something is unattended
    TimePoint unattended_until{};
    TimePoint until{};  // the end of the present one; unset where nothing is, and of the one behind a cut
    Duration before{};  // the length of the last one
    std::uint64_t departures = 0;
  } aside_;
  std::uint64_t posts_ = 0;
  TimePoint posted_at_{};  // when it first saw that many
  TimePoint worked_at_{};
  struct Linger {
    Duration time = sparse_linger_time;
    TimePoint until{};
    TimePoint crowded_until{};  // not before
  } linger_;
  unsigned empty_rounds_ = 0;
  unsigned refusals_ = 0;         // in a row
  TimePoint locked_since_{};      // when it first found the lock taken, in a row
  TimePoint moved_at_{};          // when something last moved
  unsigned kicked_standbys_ = 0;  // standbys in a row with a kick pending
};

}  // namespace hmc
