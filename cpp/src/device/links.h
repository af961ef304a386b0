// What the hardware between two memories could carry, as far as the vendors' runtimes and the kernel say. Estimates for choosing
// and explaining paths, never promises.
#pragma once

#include <string>
#include <string_view>

#include "hmc/device.h"

namespace hmc {

// Between a device and host memory where nobody says, bytes per second: PCIe 4.0 x16.
inline constexpr double usual_host_bandwidth = 25e9;
// Bytes per second and direction, 0 where nobody says. The vendor's library is asked once per process and vendor. Any thread.
double host_bandwidth(const Device& device);
// Between two devices of one vendor on this host, without going through its memory.
// `remote` is a number as its own process counts: where this process has no such device, its links are taken to be alike.
double link_bandwidth(const Device& local, const Device& remote);

// Of this host, -1 where nobody says. Any thread.
int numa_node(const Device& device);
// Such as "0000:3b:00.0"; empty where the runtime does not say. Any thread.
std::string pci_address(const Device& device);
// Whether its runtime offers `capability`, one of DeviceInfo's words. Any thread.
bool offers(const Device& device, std::string_view capability);

}  // namespace hmc
