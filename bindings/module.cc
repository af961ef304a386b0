#include "common.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "HMC's C++ core. Use the package `hmc`; this module's layout is not part of the API.";
  module.attr("version") = std::string(hmc::version());
  module.attr("wire_version") = hmc::wire_version;
  hmc::bindings::bind_errors(module);
  hmc::bindings::bind_device(module);
  hmc::bindings::bind_memory(module);
  hmc::bindings::bind_native(module);
  hmc::bindings::bind_buffer(module);
  hmc::bindings::bind_work(module);
  hmc::bindings::bind_path(module);
  hmc::bindings::bind_peer(module);
  hmc::bindings::bind_context(module);
  hmc::bindings::bind_topology(module);
  hmc::bindings::bind_communicator(module);
  hmc::bindings::bind_baseline(module);
}
