// The devices of one simulated vendor, as the environment describes them.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core.h"

namespace hmc::sim {
namespace {

constexpr std::uint64_t most_devices = 8;
thread_local int thread_device = 0;

struct Peers {
  std::mutex mutex;
  std::set<std::pair<int, int>> enabled;
};
Peers& peers() {
  static Peers& instance = *new Peers;  // never destroyed: other threads may outlive main()
  return instance;
}

// Physical numbers of the visible devices. As the vendors do, the list ends at the first entry that names no device.
std::vector<int> visible_devices() {
  const auto physical = static_cast<int>(std::min(environment_number("HMC_SIM_DEVICES", 2), most_devices));
  std::vector<int> devices;
  const char* text = std::getenv(profile.visible);
  if (text == nullptr) {
    for (int device = 0; device < physical; ++device) devices.push_back(device);
    return devices;
  }
  const std::string_view list = text;
  for (std::size_t start = 0; start < list.size();) {
    const std::size_t comma = std::min(list.find(',', start), list.size());
    int device = -1;
    const auto [end, error] = std::from_chars(list.data() + start, list.data() + comma, device);
    if (error != std::errc() || end != list.data() + comma || device < 0 || device >= physical) break;
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) break;
    devices.push_back(device);
    start = comma + 1;
  }
  return devices;
}

const std::vector<int>& devices() {
  static const std::vector<int>& list = *new std::vector<int>(visible_devices());
  return list;
}

}  // namespace

std::uint64_t environment_number(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr) return fallback;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  return error == std::errc() && *end == '\0' ? value : fallback;
}

int device_count() { return static_cast<int>(devices().size()); }

bool device_exists(int device) { return device >= 0 && device < device_count(); }

unsigned device_pci_bus(int device) {
  return profile.pci_bus + static_cast<unsigned>(devices().at(static_cast<std::size_t>(device)));
}

std::string device_pci_address(int device) {
  char text[32];
  std::snprintf(text, sizeof(text), "0000:%02x:00.0", device_pci_bus(device));
  return text;
}

std::size_t device_memory() {
  static const std::size_t bytes = environment_number("HMC_SIM_MEMORY", std::uint64_t{1} << 30);
  return bytes;
}

int current_device() { return thread_device; }

Error set_current_device(int device) {
  if (device_count() == 0) return Error::no_device;
  if (!device_exists(device)) return Error::invalid_device;
  thread_device = device;
  return Error::ok;
}

Error copy_text(const std::string& text, char* target, int bytes) {
  if (target == nullptr || bytes <= 0) return Error::invalid_value;
  const std::size_t length = std::min(text.size(), static_cast<std::size_t>(bytes) - 1);
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
  return Error::ok;
}

bool reaches_bus(int device, unsigned pci_bus) {
  static const bool peers_reach = environment_number("HMC_SIM_PEERS", 1) != 0;
  return peers_reach || device_pci_bus(device) == pci_bus;
}

bool can_access_peer(int from, int to) {
  return device_exists(from) && device_exists(to) && from != to && reaches_bus(from, device_pci_bus(to));
}

Error enable_peer_access(int from, int to) {
  if (!device_exists(from) || !device_exists(to) || from == to) return Error::invalid_device;
  if (!can_access_peer(from, to)) return Error::no_peer_access;
  const std::lock_guard lock(peers().mutex);
  return peers().enabled.emplace(from, to).second ? Error::ok : Error::peer_already_enabled;
}

}  // namespace hmc::sim
