// Completion: who is told, exactly once, that an accepted operation ended.
#pragma once

#include "hmc/status.h"

namespace hmc {

// complete() is called with the engine lock held, possibly inside the posting call; it must not block or call user code.
// The pointer stays valid until then: the poster sees to it.
class Completion {
 public:
  virtual void complete(Status status) noexcept = 0;

 protected:
  ~Completion() = default;
};

}  // namespace hmc
