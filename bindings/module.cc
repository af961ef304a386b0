#include "common.h"

namespace {

// Multi-phase initialisation would run in every interpreter that imports the module; libhmc's Contexts belong to the process.
bool refused() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return false;
  PyErr_SetString(PyExc_ImportError, "hmc works in the main interpreter only, not in a subinterpreter: use a process of its own");
  return true;
}

}  // namespace

// The extension hmc._core, as pybind11 makes it.
PYBIND11_MODULE(_core_of_main_interpreter, module) {
  module.doc() = "HMC's C++ core. Use the package `hmc`; this module's layout is not part of the API.";
  module.attr("version") = std::string(hmc::version());
  module.attr("wire_version") = hmc::wire_version;
  hmc::bindings::bind_errors(module);
  hmc::bindings::bind_device(module);
  hmc::bindings::bind_streams(module);
  hmc::bindings::bind_memory(module);
  hmc::bindings::bind_native(module);
  hmc::bindings::bind_buffer(module);
  hmc::bindings::bind_work(module);
  hmc::bindings::bind_path(module);
  hmc::bindings::bind_peer(module);
  hmc::bindings::bind_context(module);
  hmc::bindings::bind_topology(module);
  hmc::bindings::bind_plan(module);
  hmc::bindings::bind_islands(module);
  hmc::bindings::bind_layout(module);
  hmc::bindings::bind_pages(module);
  hmc::bindings::bind_communicator(module);
  hmc::bindings::bind_experts(module);
  hmc::bindings::bind_baseline(module);
  hmc::bindings::refuse_uninitialised_objects(module);
  hmc::bindings::refuse_pickling(module);
  hmc::bindings::guard_interpreter();
}

// Before pybind11 touches the interpreter: in another than the main one it would wait for ever.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core();
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() { return refused() ? nullptr : PyInit__core_of_main_interpreter(); }
