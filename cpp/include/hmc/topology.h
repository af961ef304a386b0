// Topology: hosts, the cards in them, what joins them, and which process of a job brings which card. Discovered, or written down.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

// A memory owner that may take part in a job: an accelerator, or a host's CPU memory. Facts that are not known keep their defaults.
struct TopologyCard {
  std::string name;    // unique in its Topology
  std::string host;    // the name of its host
  Device device;       // as the process that brings it counts
  int process = -1;    // the number of that process in the job (InitOptions::rank); -1: takes no part
  std::string model;   // "NVIDIA H200"
  std::string pci;     // "0000:3b:00.0"
  int numa_node = -1;  // of the host
  std::uint64_t memory_bytes = 0;
  double host_bandwidth = 0;  // to and from host memory, bytes per second and direction
  std::string provenance;     // "hardware", "simulated", "facade"; empty: written down
  std::string bus = {};       // the PCI root and bridges above it, "pci0000:37/0000:37:01.0"

  friend bool operator==(const TopologyCard&, const TopologyCard&) = default;
};

struct TopologyNic {
  std::string name;  // "eth0", "mlx5_0"; unique on its host
  std::string host;
  std::string kind;  // "ethernet", "infiniband", "roce"
  std::string pci;
  int numa_node = -1;
  double bandwidth = 0;  // bytes per second and direction
  std::string bus = {};  // as of a card

  friend bool operator==(const TopologyNic&, const TopologyNic&) = default;
};

// Two cards that reach each other without host memory. Both directions.
struct TopologyLink {
  std::string a, b;      // names of cards
  std::string kind;      // "nvlink", "peer", "same card", or the application's word
  double bandwidth = 0;  // bytes per second and direction; 0: not known

  friend bool operator==(const TopologyLink&, const TopologyLink&) = default;
};

// Plain data; fill it in any order, check() says whether it fits together. Thread rules: a value.
struct HMC_API Topology {
  std::vector<std::string> hosts;  // names
  std::vector<TopologyCard> cards;
  std::vector<TopologyNic> nics;
  std::vector<TopologyLink> links;

  // This host: its CPU memory, every device usable by this process, its network cards. No card takes part in anything yet.
  // Opens vendor libraries.
  static Topology discover();

  // Errors: invalid_argument naming what is wrong: a name that is missing, used twice or points nowhere, a process that brings
  // cards of two hosts, a process number without cards below the highest one, a bandwidth that is negative or not finite.
  [[nodiscard]] Status check() const;
  // Cards that take part, in the order of their ranks: by process, and as listed within one.
  [[nodiscard]] std::vector<const TopologyCard*> members() const;
  [[nodiscard]] int processes() const;                                                   // that bring cards
  [[nodiscard]] std::vector<Device> devices_of(int process) const;                       // in the order of ranks
  [[nodiscard]] const TopologyCard* card(std::string_view name) const;                   // null: none
  [[nodiscard]] const TopologyLink* link(std::string_view a, std::string_view b) const;  // in either order; null: none

  // How far a network card is from a card of its host: "switch" (a PCIe switch joins them), "root" (the same PCIe root), "node"
  // (the same NUMA node), "system" (farther); empty: not known, or not on one host. The nearer, the less of the host a transfer
  // crosses.
  [[nodiscard]] static std::string_view distance(const TopologyCard& card, const TopologyNic& nic);
  // The cards nearest to a network card, if anything nearer than "system" is known. CPU memory is no card here.
  [[nodiscard]] std::vector<const TopologyCard*> near(const TopologyNic& nic) const;

  // As text, one line per item (docs/reference/topology.md); parse() reads what str() writes. Errors of parse: invalid_argument
  // with the line, and what check() finds.
  [[nodiscard]] std::string str() const;
  static Result<Topology> parse(std::string_view text);
  // Errors: invalid_argument (the file cannot be read or written, with the reason), those of parse.
  static Result<Topology> load(const std::string& file);
  // Readers of `file` see what it held before, or all of this. Its permissions and a symbolic link in its place stay.
  [[nodiscard]] Status save(const std::string& file) const;

  friend bool operator==(const Topology&, const Topology&) = default;
};

}  // namespace hmc
