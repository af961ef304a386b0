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
    return row;
  };
  module.def("runtimes", [as_dict] {
    py::list all;
    for (const auto& runtime : list_runtimes()) {
      py::list found;
      for (const auto& info : runtime.devices) found.append(as_dict(info));
      py::dict row;
      row["vendor"] = runtime.vendor;
      row["available"] = runtime.available;
      row["reason"] = runtime.reason;
      row["devices"] = found;
      all.append(row);
    }
    return all;
  });
}

}  // namespace hmc::bindings
