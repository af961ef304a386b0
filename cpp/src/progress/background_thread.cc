#include "progress/background_thread.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "progress/watch.h"

namespace hmc {

void BackgroundThread::start() {
  core_.role.take();
  thread_ = start_thread("hmc-progress", [this, owner = owner_] { run(owner); });
  absent_.store(thread_ == nullptr);
  if (!thread_) {
    core_.role.give_up();
    warn_once("progress-thread",
              "no background thread could be started (limit of processes reached?): only waiting calls make progress");
  }
}

void BackgroundThread::run(const std::weak_ptr<const void>& owner) {
  // If this thread releases the last reference, the owner's destructor runs on it, and stop() sets `gone`. Otherwise the destructor
  // joins this thread first.
  bool gone = false;
  gone_ = &gone;
  Watch watch(core_, stopping_, Watch::TimePoint::max(), &dispatcher_);
  for (;;) {
    auto kept = owner.lock();
    if (!kept) return;
    const bool leave = stopping_.load() != 0;
    std::optional<Watch::Nap> nap;
    if (leave) {
      const EngineLock::Lock held = core_.lock.lock();
      watch.end();
    } else {
      nap = watch.round();
      const auto retry = dispatcher_.retry();
      if (nap && retry) nap->until = std::min(nap->until, *retry);
    }
    kept.reset();
    if (gone || leave) return;
    if (nap) watch.sleep(*nap);
  }
}

void BackgroundThread::stop() {
  std::unique_ptr<std::thread> thread;
  {
    const EngineLock::Lock held = core_.lock.lock();
    absent_.store(true);
    stopping_.store(1);
    thread = std::move(thread_);
  }
  if (!thread) return;
  if (thread->get_id() == std::this_thread::get_id()) {
    *gone_ = true;
    thread->detach();
  } else {
    core_.role.ring();
    thread->join();
  }
}

}  // namespace hmc
