// Keyword arguments of hmc.Context and hmc.init as ContextOptions.
#pragma once

#include "callbacks.h"
#include "common.h"

namespace hmc::bindings {

// `settings`: listen, key, insecure, name, transports, policy, heartbeat, progress, on_joined, on_left; absent or None means the
// default. Throws TypeError for any other name. `callbacks` are what the options call.
ContextOptions context_options(const py::kwargs& settings, Callbacks& callbacks);

}  // namespace hmc::bindings
