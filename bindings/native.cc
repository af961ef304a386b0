#include "common.h"

namespace hmc::bindings {

void bind_native(py::module_& module) {
  py::class_<NativeConnection, std::unique_ptr<NativeConnection, WithoutGil<NativeConnection>>>(
      module, "NativeConnection",
      "A connection from a program that is not HMC; made by Context.connect_native(). Its end closes it.")
      .def_property_readonly("fields", &NativeConnection::fields, "What the other program needs to connect its end.")
      .def(
          "close",
          [](const NativeConnection& self) {
            const ReleasedGil nogil;
            self.close();
          },
          "Nothing comes in through it afterwards. Idempotent.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](const py::object& self, const py::args&) { self.attr("close")(); });
}

}  // namespace hmc::bindings
