// What this host is made of: devices as the vendors' runtimes name them, network cards as the kernel does.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/topology/discover.h"
#include "device/pci.h"

namespace hmc {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Of the card, or of what it hangs on (a virtio device). Empty: not on a PCI bus.
std::string pci_of(const fs::path& card) {
  std::error_code error;
  for (fs::path at = fs::canonical(card / "device", error); !error && at.has_relative_path(); at = at.parent_path()) {
    const std::string name = at.filename().string();  // "0000:3b:00.0"
    if (name.size() >= 12 && name[name.size() - 2] == '.' && name[name.size() - 5] == ':' && name[name.size() - 8] == ':')
      return name;
  }
  return "";
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    found.push_back(at->path());
  }
  std::ranges::sort(found);
  return found;
}

void place(TopologyNic& nic, const std::string& sysfs) {
  PciFacts facts = pci_facts(nic.pci, sysfs);
  nic.numa_node = facts.numa_node;
  nic.bus = std::move(facts.bus);
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::vector<TopologyNic> discover_nics(const std::string& host, const std::string& sysfs) {
  std::vector<TopologyNic> nics;
  for (const auto& card : entries(fs::path(sysfs) / "class/infiniband")) {
    TopologyNic nic{.name = card.filename().string(), .host = host, .kind = "infiniband", .pci = pci_of(card)};
    for (const auto& port : entries(card / "ports")) {
      if (first_line(port / "link_layer") == "Ethernet") nic.kind = "roce";
      nic.bandwidth += std::strtod(first_line(port / "rate").c_str(), nullptr) * 1e9 / 8;  // "400 Gb/sec (4X NDR)"
    }
    place(nic, sysfs);
    nics.push_back(std::move(nic));
  }
  for (const auto& card : entries(fs::path(sysfs) / "class/net")) {
    std::error_code error;
    if (!fs::exists(card / "device", error) || first_line(card / "operstate") == "down") continue;  // virtual, or unused
    TopologyNic nic{.name = card.filename().string(), .host = host, .kind = "ethernet", .pci = pci_of(card)};
    const double megabits = std::strtod(first_line(card / "speed").c_str(), nullptr);  // -1 or unreadable: not known
    nic.bandwidth = std::max(megabits, 0.0) * 1e6 / 8;
    place(nic, sysfs);
    nics.push_back(std::move(nic));
  }
  return nics;
}

Topology Topology::discover() {
  Topology topology;
  const std::string host = host_name();
  topology.hosts.push_back(host);
  const auto name_of = [&](const Device& device) { return host + "/" + device.str(); };
  for (const auto& runtime : list_runtimes()) {
    for (const auto& info : runtime.devices) {
      topology.cards.push_back({name_of(info.device), host, info.device, -1, info.name, info.pci, info.numa_node, info.memory_bytes,
                                info.host_bandwidth, info.provenance, pci_facts(info.pci).bus});
    }
    for (const auto& link : runtime.links) {
      topology.links.push_back({name_of(link.a), name_of(link.b), link.kind, link.bandwidth});
    }
  }
  topology.nics = discover_nics(host, "/sys");
  return topology;
}

}  // namespace hmc
