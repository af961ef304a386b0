#include "hmc/interrupt.h"

namespace hmc {
namespace {

constexpr auto look_interval = std::chrono::milliseconds(100);
thread_local Interruptible* innermost = nullptr;

// What asked() runs, such as a signal handler, may block in HMC: those calls must not use the object in use.
class Hidden {
 public:
  Hidden() noexcept : hidden_(innermost) { innermost = nullptr; }
  ~Hidden() { innermost = hidden_; }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  Interruptible* const hidden_;
};

}  // namespace

Interruptible::Interruptible() noexcept : outer_(innermost) { innermost = this; }

Interruptible::~Interruptible() { innermost = outer_; }

bool Interruptible::ask() {
  if (interrupted_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look(now)) return false;
  next_look_ = now + look_interval;
  const Hidden hidden;
  interrupted_ = asked();
  return interrupted_;
}

std::chrono::steady_clock::time_point Interruptible::next_look(std::chrono::steady_clock::time_point now) noexcept {
  if (next_look_ == std::chrono::steady_clock::time_point{}) next_look_ = now + look_interval;
  return next_look_;
}

Interruptible* Interruptible::current() noexcept { return innermost; }

}  // namespace hmc
