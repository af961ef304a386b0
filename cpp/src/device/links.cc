#include "device/links.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "device/runtime.h"

namespace hmc {
namespace {

// Devices come and go only between processes.
const RuntimeInfo& facts_of(const Device& device) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, RuntimeInfo, std::less<>>();  // used by threads that outlive main
  const std::scoped_lock lock(mutex);
  const auto found = known->find(device.vendor());
  if (found != known->end()) return found->second;
  const auto runtime = runtime_for(device);
  RuntimeInfo info = runtime.ok() ? (*runtime)->enumerate() : RuntimeInfo{};
  return known->emplace(std::string(device.vendor()), std::move(info)).first->second;
}

const DeviceInfo* info_of(const Device& device) {
  for (const auto& info : facts_of(device).devices) {
    if (info.device == device) return &info;
  }
  return nullptr;
}

}  // namespace

double host_bandwidth(const Device& device) {
  const DeviceInfo* info = info_of(device);
  return info == nullptr ? 0 : info->host_bandwidth;
}

int numa_node(const Device& device) {
  const DeviceInfo* info = info_of(device);
  return info == nullptr ? -1 : info->numa_node;
}

std::string pci_address(const Device& device) {
  const DeviceInfo* info = info_of(device);
  return info == nullptr ? std::string() : info->pci;
}

bool offers(const Device& device, std::string_view capability) {
  const DeviceInfo* info = info_of(device);
  return info != nullptr && std::ranges::count(info->capabilities, capability) != 0;
}

double link_bandwidth(const Device& local, const Device& remote) {
  if (local.is_cpu() || local.vendor() != remote.vendor()) return 0;
  double any = 0;
  for (const auto& link : facts_of(local).links) {
    if (link.a != local && link.b != local) continue;
    if (link.a == remote || link.b == remote) return link.bandwidth;
    any = link.bandwidth;
  }
  return local == remote ? 0 : any;
}

}  // namespace hmc
