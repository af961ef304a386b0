// Callables that the core calls on its dispatcher thread for as long as a Context lives. The core owns them, and the garbage
// collector sees them through the Python object that was made with them: a Context whose callback is a method of its owner can be
// collected.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "common.h"

namespace hmc::bindings {

// One callable; any thread.
class Callback {
 public:
  explicit Callback(py::handle callable) : callable_(shared_reference(callable)) {}
  // Null once the collector has cleared it.
  [[nodiscard]] std::shared_ptr<const void> get() const {
    const std::scoped_lock lock(mutex_);
    return callable_;
  }
  void clear() {
    std::shared_ptr<const void> gone;  // ends without the lock
    const std::scoped_lock lock(mutex_);
    gone.swap(callable_);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const void> callable_;
};
using Callbacks = std::vector<std::shared_ptr<Callback>>;

// `owner` shows these to the collector from now on; an instance of a class with collectable_callbacks(). GIL held.
void show_callbacks(py::handle owner, Callbacks callbacks);
// An extra of py::class_: its instances can show callbacks.
py::custom_type_setup collectable_callbacks();

}  // namespace hmc::bindings
