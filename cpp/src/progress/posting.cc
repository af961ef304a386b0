#include "progress/posting.h"

namespace hmc {
namespace {

// Sets a mark, and takes it away where the round throws, too: else nobody would ask in time which kernels have ended.
class Marked {
 public:
  explicit Marked(bool& mark) noexcept : mark_(mark) { mark_ = true; }
  ~Marked() { mark_ = false; }
  Marked(const Marked&) = delete;
  Marked& operator=(const Marked&) = delete;

 private:
  bool& mark_;
};

}  // namespace

void Posting::look() {
  if (core_.rounds.pollables().in_round() || core_.rounds.pollables().armed() || core_.forked()) return;
  core_.drivers.look_in_post();
  const Marked marked(looks_);
  core_.rounds.run(core_.rounds.sources().stale(Deadline::Clock::now(), events_after));
}

}  // namespace hmc
