#include "progress/posting.h"

namespace hmc {

void Posting::look() {
  if (core_.rounds.pollables().in_round() || core_.rounds.pollables().armed() || core_.forked()) return;
  core_.drivers.look_in_post();
  looks_ = true;
  core_.rounds.run(core_.rounds.sources().stale(Deadline::Clock::now(), events_after));
  looks_ = false;
}

}  // namespace hmc
