#include "hmc/interrupt.h"

#include <utility>

namespace hmc {
namespace {

constexpr auto look_interval = std::chrono::milliseconds(100);
thread_local Interruptible* innermost = nullptr;

}  // namespace

Interruptible::Interruptible(std::function<bool()> asked)
    : asked_(std::move(asked)), outer_(innermost), next_look_(std::chrono::steady_clock::now() + look_interval) {
  innermost = this;
}

Interruptible::~Interruptible() { innermost = outer_; }

bool Interruptible::ask() {
  if (interrupted_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return false;
  next_look_ = now + look_interval;
  interrupted_ = asked_();
  return interrupted_;
}

Interruptible* Interruptible::current() noexcept { return innermost; }

}  // namespace hmc
