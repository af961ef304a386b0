// Engine: tables, rounds, beginning and end. Lock held unless said otherwise.
#include "progress/engine.h"
#include "hmc/interrupt.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "progress/engine_impl.h"
#include "progress/futex.h"

namespace hmc {

Result<std::shared_ptr<Engine>> Engine::create(Progress progress) {
  install_fork_handler();
  auto engine = std::make_shared<EngineImpl>(progress);
  HMC_TRY(engine->open(engine));
  return std::shared_ptr<Engine>(std::move(engine));
}

Engine::Lock Engine::lock_contended() {
  constexpr int pauses = 200;
  constexpr int yields = 4000;
  if (auto* const interruptible = Interruptible::current()) interruptible->before_waiting();
  contenders_.fetch_add(1);
  for (int i = 0; i < yields; ++i) {
    if (i < pauses) {
      cpu_relax();
    } else {
      sched_yield();
    }
    if (mutex_.try_lock()) {
      contenders_.fetch_sub(1);
      return Lock(mutex_, std::adopt_lock);
    }
  }
  Lock lock(mutex_);
  contenders_.fetch_sub(1);
  return lock;
}

Status EngineImpl::open(std::weak_ptr<EngineImpl> self) {
  self_ = std::move(self);
  HMC_TRY(sources_.descriptors().open());
  return role_.open();
}

EngineImpl::~EngineImpl() {
  if (!forked()) {
    stop();
    return;
  }
  // A forked child: no thread of ours exists here, and their locks may be held for ever.
  dispatcher_.abandon();
  static_cast<void>(background_.release());
}

void EngineImpl::stop() {
  if (forked()) return;
  std::unique_ptr<std::thread> thread;
  {
    const Lock held = lock();
    threadless_.store(true);
    stopping_.store(1);
    thread = std::move(background_);
  }
  if (thread && thread->get_id() == std::this_thread::get_id()) {
    // The background thread dropped the last reference, lock not held: it returns without touching the engine again.
    *background_gone_ = true;
    thread->detach();
  } else if (thread) {
    role_.ring();
    thread->join();
  }
  finish_deferred();
  drop_retired();
  dispatcher_.stop();
  drop_retired();  // what the last callbacks let go
  const Lock held = lock();
  role_.close();
  sources_.descriptors().close();
}

void EngineImpl::add(Pollable& pollable) {
  pollables_.add(pollable);
  need_watcher();
  if (pollables_.armed()) take_over();  // it is not armed yet
}

void EngineImpl::remove(Pollable& pollable) { pollables_.remove(pollable); }

Status EngineImpl::watch(int fd, std::uint32_t events, FdHandler& handler) {
  if (forked()) return forked_status();
  HMC_TRY(sources_.descriptors().watch(fd, events, handler));
  need_watcher();
  return {};
}

void EngineImpl::modify(int fd, std::uint32_t events) {
  if (!forked()) sources_.descriptors().modify(fd, events);
}

void EngineImpl::unwatch(int fd) {
  if (!forked()) sources_.descriptors().unwatch(fd);
}

Engine::TimerId EngineImpl::at(Deadline when, std::function<void()> callback) {
  const TimerId id = sources_.timers().add(when.when(), std::move(callback));
  need_watcher();
  if (pollables_.armed()) role_.wake_by(when.when());
  return id;
}

void EngineImpl::cancel_timer(TimerId id) { sources_.timers().cancel(id); }

void EngineImpl::defer(std::function<void()> function) {
  deferred_.add(std::move(function));
  if (!pollables_.in_round()) kick();
}

void EngineImpl::kick() {
  if (forked()) return;
  kicks_.kick();
  // A driver looks for kicks when it leaves.
  if (driver_present_.load()) return;
  if (!kicks_.unanswered()) kicks_.expect_answer(Deadline::Clock::now());
  need_watcher();
  wake_watcher_unless_prompt();
}

void EngineImpl::retire(std::shared_ptr<const void> owner) {
  retired_.add(std::move(owner));
  // Counts as driving: the watcher comes by a tick later, and is not woken again for every operation of a busy poster.
  driven_.fetch_add(1, std::memory_order_relaxed);
  need_watcher();
  if (pollables_.armed()) take_over();
}

void EngineImpl::drop_retired() {
  if (forked()) return;
  RetiredOwners::Owners owners;
  {
    const Lock held = lock();
    owners = retired_.take();
  }
  owners.clear();  // may take the lock
}

void EngineImpl::dispatch(std::function<void()> function) {
  if (!forked()) dispatcher_.dispatch(std::move(function));
}

bool EngineImpl::poll_once() {
  if (pollables_.in_round() || forked()) return false;
  driven_.fetch_add(1, std::memory_order_relaxed);
  if (kicks_.unanswered(std::memory_order_relaxed)) kicks_.answer(Deadline::Clock::now());
  if (pollables_.armed()) take_over();
  return round(sources_.stale(Deadline::Clock::now())) != nothing;
}

unsigned EngineImpl::round(bool with_descriptors) {
  unsigned moved = nothing;
  {
    const Pollables::Round round(pollables_);
    if (pollables_.poll()) moved |= pollables;
    if (with_descriptors || sources_.count_round() || pollables_.empty()) {
      const EventSources::Found found = sources_.look();
      if (found.descriptors) moved |= descriptors;
      if (found.timers) moved |= timers;
      with_descriptors = true;
    }
    if (!deferred_.empty()) {
      run_deferred();
      moved |= pollables;
    }
  }
  if (!sleepers_.empty() && (moved != nothing || with_descriptors)) {
    const Pollables::Round round(pollables_);  // predicates must not start rounds or wake others
    sleepers_.wake_satisfied(role_);
  }
  return moved;
}

void EngineImpl::run_deferred() {
  deferred_.run();
  if (!deferred_.empty()) kicks_.kick();
}

// What the last round left. A deferred function may own, through what it ends, this engine: unrun, neither would ever go.
void EngineImpl::finish_deferred() {
  const auto self = self_.lock();
  if (self == nullptr) return;  // our end: nothing owns us any more
  constexpr int most = 64;      // functions that defer others for ever are left to whoever still drives
  const Lock held = lock();
  const Pollables::Round round(pollables_);
  for (int i = 0; i < most && !deferred_.empty(); ++i) run_deferred();
}

void EngineImpl::wake_sleepers() {
  // Inside somebody's update: predicates may not be evaluated here. In a round its end does that; else their owners look again.
  sleepers_.wake_flagged(!pollables_.in_round(), role_);
}

}  // namespace hmc
