#include "device/pci.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace hmc {
namespace {

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Of one link: "32.0 GT/s PCIe" times "16" lanes. From 8 GT/s a byte takes 8.125 bits (128b/130b), before that 10 (8b/10b).
double link_bandwidth(const std::filesystem::path& device) {
  const double transfers = std::strtod(first_line(device / "max_link_speed").c_str(), nullptr) * 1e9;
  const double lanes = std::strtod(first_line(device / "max_link_width").c_str(), nullptr);
  return transfers * lanes / (transfers >= 8e9 ? 8.125 : 10.0);
}

}  // namespace

PciFacts pci_facts(std::string_view address, const std::string& sysfs) {
  namespace fs = std::filesystem;
  PciFacts facts;
  if (address.empty()) return facts;
  std::string name(address);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.find('/') != std::string::npos) return facts;
  std::error_code error;
  // The real path names every bridge on the way: /sys/devices/pci0000:37/0000:37:01.0/0000:3b:00.0.
  fs::path at = fs::canonical(fs::path(sysfs) / "bus/pci/devices" / name, error);
  if (error) return facts;
  for (fs::path above = at.parent_path(); above.has_filename(); above = above.parent_path()) {
    const std::string bridge = above.filename().string();
    facts.bus = bridge + (facts.bus.empty() ? "" : "/") + facts.bus;
    if (bridge.starts_with("pci")) break;
    if (bridge.find(':') == std::string::npos) facts.bus.clear();  // not on a PCI bus after all
    if (facts.bus.empty()) break;
  }
  facts.vendor = static_cast<int>(std::strtol(first_line(at / "vendor").c_str(), nullptr, 16));
  if (const std::string node = first_line(at / "numa_node"); !node.empty()) {
    facts.numa_node = static_cast<int>(std::strtol(node.c_str(), nullptr, 10));
  }
  for (; fs::exists(at / "max_link_speed", error); at = at.parent_path()) {
    const double here = link_bandwidth(at);
    if (here > 0) facts.bandwidth = facts.bandwidth > 0 ? std::min(facts.bandwidth, here) : here;
  }
  return facts;
}

}  // namespace hmc
