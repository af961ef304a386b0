#include "arguments.h"

namespace hmc::bindings {

void bind_path(py::module_& module) {
  py::class_<Path>(module, "Path",
                   "The route between a local and a remote device, and why. A snapshot: ask again for current counters.")
      .def_readonly("transport", &Path::transport, "Name of the transport: \"local\", \"shm\", \"tcp\", ...")
      .def_property_readonly(
          "source", [](const Path& path) { return path.source.str(); }, "Device here.")
      .def_property_readonly(
          "target", [](const Path& path) { return path.target.str(); }, "Device at the peer.")
      .def_readonly("direct", &Path::direct, "True when nothing is copied through a stage.")
      .def_readonly("encrypted", &Path::encrypted, "True when the payload is encrypted on the wire.")
      .def_readonly("detail", &Path::detail, "How the transport moves the bytes.")
      .def_readonly("reason", &Path::reason, "Why this path was chosen.")
      .def_readonly("runner_up", &Path::runner_up, "Name of the transport that takes over if this one fails; empty: none.")
      .def_readonly("messages", &Path::messages,
                    "Name of the transport that messages (send, recv, all-to-all) take where it is another one; else empty.")
      .def_readonly("rejected", &Path::rejected, "The other candidates, each with its reason.")
      .def_readonly("latency_us", &Path::latency_us, "Expected one-way latency of a small message, microseconds.")
      .def_readonly("bandwidth", &Path::bandwidth, "Expected bandwidth of a large message, bytes per second.")
      .def_readonly("hardware_bandwidth", &Path::hardware_bandwidth,
                    "What the hardware between the two could carry as far as it is known, bytes per second; 0: not known.")
      .def_readonly("bytes_put", &Path::bytes_put, "Bytes put on this path from this side so far.")
      .def_readonly("bytes_got", &Path::bytes_got, "Bytes got on this path by this side so far.")
      .def_readonly("bytes_staged", &Path::bytes_staged, "Bytes copied through a stage so far.")
      .def("__str__", &Path::str)
      .def("__repr__", [](const Path& path) { return "<hmc.Path " + path.str() + ">"; });
  module.def("settings", [] {
    py::list all;
    for (const auto& variable : list_settings()) {
      py::dict row;
      row["name"] = variable.name;
      row["default"] = variable.fallback;
      row["help"] = variable.help;
      all.append(row);
    }
    return all;
  });
  // The file that a Python package brings, for the library that the variable names.
  module.def(
      "suggest_library",
      [](const Text<"variable">& variable, const py::object& path) { suggest_library(*variable, file_of(path, "path")); },
      py::arg("variable"), py::arg("path"));
  module.def("keygen", [] { return generate_job_key(); });
  module.def("transports", [] {
    const auto transports = [] {
      const ReleasedGil nogil;  // it opens libraries, and asks network cards
      return list_transports();
    }();
    py::list all;
    for (const auto& info : transports) {
      py::dict row;
      row["name"] = info.name;
      row["available"] = info.available;
      row["reason"] = info.reason;
      all.append(row);
    }
    return all;
  });
}

}  // namespace hmc::bindings
