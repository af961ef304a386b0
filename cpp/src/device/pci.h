// Where a PCI device sits on this host, from sysfs.
#pragma once

#include <string>
#include <string_view>

namespace hmc {

struct PciFacts {
  int vendor = 0;        // PCI's number of it, 0x10de for NVIDIA; 0: unknown
  int numa_node = -1;    // -1: unknown
  std::string bus;       // the root and the bridges above it, "pci0000:37/0000:37:01.0"; empty: unknown
  double bandwidth = 0;  // raw, bytes per second and direction, of the narrowest link up to the host; 0: unknown
};
// `address`: "0000:3b:00.0" in either case. Facts that are not there stay unknown. Any thread.
PciFacts pci_facts(std::string_view address, const std::string& sysfs = "/sys");

}  // namespace hmc
