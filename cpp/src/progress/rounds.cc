#include "progress/rounds.h"

namespace hmc {

unsigned Rounds::run(bool with_descriptors, const std::atomic<std::uint32_t>* awaited) {
  unsigned moved = nothing;
  awaited_ = awaited;
  {
    const Pollables::Round round(pollables_);
    if (pollables_.poll()) moved |= pollables_moved;
    if (with_descriptors || sources_.count_round() || pollables_.empty()) {
      const EventSources::Found found = sources_.look();
      if (found.descriptors) moved |= descriptors_moved;
      if (found.timers) moved |= timers_moved;
      with_descriptors = true;
    }
    if (!deferred_.empty()) {
      run_deferred();
      moved |= pollables_moved;
    }
  }
  awaited_ = nullptr;
  if (!sleepers_.empty() && (moved != nothing || with_descriptors)) {
    const Pollables::Round round(pollables_);  // predicates must not start rounds or wake others
    sleepers_.wake_satisfied(role_);
  }
  return moved;
}

bool Rounds::arm() {
  if (!deferred_.empty() || !pollables_.arm()) return false;
  if (deferred_.empty()) return true;
  pollables_.disarm();
  return false;
}

void Rounds::finish() {
  constexpr int most = 64;  // functions that defer one another without end are left to later rounds
  const Pollables::Round round(pollables_);
  for (int i = 0; i < most && !deferred_.empty(); ++i) run_deferred();
}

void Rounds::run_deferred() {
  deferred_.run();
  if (!deferred_.empty()) kicks_.kick();
}

}  // namespace hmc
