// Engine: what posting calls ask of it, its beginning and its end. Lock held unless said otherwise.
#include "progress/engine.h"

#include <utility>

#include "base/fork.h"
#include "progress/drive.h"

namespace hmc {
namespace {

// For a Context without a background thread.
void retry(Dispatcher& dispatcher, const EngineCore& core) {
  if (dispatcher.lacks_thread() && !core.forked()) static_cast<void>(dispatcher.retry());
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::create(Progress progress) {
  install_fork_handler();
  std::shared_ptr<Engine> engine(new Engine(progress));
  engine->background_.belong_to(engine);
  HMC_TRY(engine->core_.rounds.sources().descriptors().open());
  HMC_TRY(engine->core_.role.open());
  return engine;
}

Engine::~Engine() {
  if (!forked()) {
    stop();
    return;
  }
  // A forked child: no thread of ours exists here, and their locks may be held for ever.
  dispatcher_.abandon();
  background_.abandon();
}

void Engine::stop() {
  if (forked()) return;
  background_.stop();
  // A deferred function may own, through what it ends, this engine: unrun, neither would ever go. In the destructor nothing owns
  // it.
  if (const auto self = weak_from_this().lock()) {
    const Lock held = lock();
    core_.rounds.finish();
  }
  drop_retired();
  dispatcher_.stop();
  drop_retired();  // what the last callbacks let go
  const Lock held = lock();
  core_.role.close();
  core_.rounds.sources().descriptors().close();
}

void Engine::add(Pollable& pollable) {
  core_.rounds.pollables().add(pollable);
  background_.need();
  core_.take_over();  // it is not armed yet
}

void Engine::remove(Pollable& pollable) { core_.rounds.pollables().remove(pollable); }

Status Engine::watch(int fd, std::uint32_t events, FdHandler& handler) {
  if (forked()) return forked_status();
  HMC_TRY(core_.rounds.sources().descriptors().watch(fd, events, handler));
  background_.need();
  return {};
}

void Engine::modify(int fd, std::uint32_t events) {
  if (!forked()) core_.rounds.sources().descriptors().modify(fd, events);
}

void Engine::unwatch(int fd) {
  if (!forked()) core_.rounds.sources().descriptors().unwatch(fd);
}

Engine::TimerId Engine::at(Deadline when, std::function<void()> callback) {
  const TimerId id = core_.rounds.sources().timers().add(when.when(), std::move(callback));
  background_.need();
  if (core_.rounds.pollables().armed()) core_.role.wake_by(when.when());
  return id;
}

void Engine::cancel_timer(TimerId id) { core_.rounds.sources().timers().cancel(id); }

void Engine::defer(std::function<void()> function) {
  core_.rounds.defer(std::move(function));
  if (!core_.rounds.pollables().in_round()) kick();
}

void Engine::kick() {
  if (forked()) return;
  core_.kicks.kick();
  // A driver looks for kicks when it leaves.
  if (core_.drivers.present()) return;
  if (!core_.kicks.unanswered()) core_.kicks.expect_answer(Deadline::Clock::now());
  background_.need();
  core_.wake_watcher_unless_prompt();
}

void Engine::retire(std::shared_ptr<const void> owner) {
  core_.retired.add(std::move(owner));
  // The watcher comes by a tick later, and is not woken again for every operation of a busy poster.
  core_.drivers.put_off();
  background_.need();
  core_.take_over();
}

bool Engine::poll_once() {
  if (core_.rounds.pollables().in_round() || forked()) return false;
  retry(dispatcher_, core_);
  core_.drivers.count();
  core_.answer_kicks();
  core_.take_over();
  return core_.rounds.run(core_.rounds.sources().stale(Deadline::Clock::now())) != Rounds::nothing;
}

// ---- lock not held ----

bool Engine::drive(Deadline deadline, const std::function<bool()>& done) {
  retry(dispatcher_, core_);
  return Drive<FunctionDone>(core_, background_, deadline, FunctionDone{done}).run();
}

bool Engine::drive_flag(Deadline deadline, const std::atomic<std::uint32_t>& flag) {
  if (flag.load(std::memory_order_acquire) != 0) return true;
  retry(dispatcher_, core_);
  return Drive<FlagDone>(core_, background_, deadline, FlagDone{flag}).run();
}

// ---- lock held or not ----

void Engine::dispatch(std::function<void()> function) {
  if (forked()) return;
  dispatcher_.dispatch(std::move(function));
  if (dispatcher_.lacks_thread()) core_.role.ring();  // the background thread retries
}

}  // namespace hmc
