#include "common.h"

namespace hmc::bindings {

void bind_device(py::module_& module) {
  const auto as_dict = [](const DeviceInfo& info) {
    py::dict row;
    row["device"] = info.device.str();
    row["name"] = info.name;
    row["memory_bytes"] = info.memory_bytes;
    row["pci"] = info.pci;
    row["provenance"] = info.provenance;
    row["numa_node"] = info.numa_node < 0 ? std::nullopt : std::optional(info.numa_node);
    row["host_bandwidth"] = info.host_bandwidth;
    row["capabilities"] = info.capabilities;
    return row;
  };
  module.def("runtimes", [as_dict] {
    const auto runtimes = [] {
      const ReleasedGil nogil;  // the first call opens vendors' libraries
      return list_runtimes();
    }();
    py::list all;
    for (const auto& runtime : runtimes) {
      py::list found;
      for (const auto& info : runtime.devices) found.append(as_dict(info));
      py::list links;
      for (const auto& link : runtime.links) {
        py::dict one;
        one["a"] = link.a.str();
        one["b"] = link.b.str();
        one["kind"] = link.kind;
        one["bandwidth"] = link.bandwidth;
        links.append(one);
      }
      py::dict row;
      row["vendor"] = runtime.vendor;
      row["available"] = runtime.available;
      row["reason"] = runtime.reason;
      row["devices"] = found;
      row["links"] = links;
      all.append(row);
    }
    return all;
  });
}

}  // namespace hmc::bindings
