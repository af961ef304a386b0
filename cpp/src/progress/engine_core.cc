#include "progress/engine_core.h"

namespace hmc {

void EngineCore::drop_retired() {
  if (forked()) return;
  RetiredOwners::Owners owners;
  {
    const EngineLock::Lock held = lock.lock();
    owners = retired.take();
  }
  owners.clear();  // may take the lock
}

}  // namespace hmc
