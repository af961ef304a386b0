// Whether the calling thread's blocking call was told to end (hmc/interrupt.h).
#pragma once

#include "hmc/interrupt.h"
#include "hmc/status.h"

namespace hmc {

// What its last wait found. Any lock held.
inline bool interrupted() {
  const Interruptible* const current = Interruptible::current();
  return current != nullptr && current->interrupted();
}

// Between waits that may all be short. No lock held.
inline bool ask_interrupted() {
  Interruptible* const current = Interruptible::current();
  return current != nullptr && current->ask();
}

inline Status interrupted_status() { return {Code::cancelled, "interrupted by a signal"}; }

}  // namespace hmc
