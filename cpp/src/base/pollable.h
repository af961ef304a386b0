// Pollable: something the progress engine turns.
#pragma once

namespace hmc {

// All calls with the engine lock held; none may block. poll() copies at most about 1 MiB per call.
class Pollable {
 public:
  // Moves what can be moved. True if anything did.
  virtual bool poll() = 0;
  // The background thread is about to sleep: arrange that the peer's next action wakes the engine (doorbell, descriptor).
  // False: something is already there (or poll() has deferred work); do not sleep.
  virtual bool arm() { return true; }
  // Somebody polls again: peers need not ring.
  virtual void disarm() {}
  // Something under way moves only when it is polled. May be claimed for nothing: whoever stops polling then calls the background
  // thread.
  [[nodiscard]] virtual bool busy() const { return true; }

 protected:
  ~Pollable() = default;
};

}  // namespace hmc
