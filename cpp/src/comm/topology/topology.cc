// Topology as a value: what belongs together, and who takes part.
#include "hmc/topology.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace hmc {
namespace {

Status wrong(std::string what) { return {Code::invalid_argument, "topology: " + std::move(what)}; }

// So that its text reads back the same.
bool is_rate(double bandwidth) { return std::isfinite(bandwidth) && bandwidth >= 0; }

// How many of the root and the bridges below it lead to both.
std::size_t shared_bridges(std::string_view a, std::string_view b) {
  std::size_t count = 0;
  while (!a.empty() && !b.empty()) {
    const std::size_t end_a = std::min(a.find('/'), a.size()), end_b = std::min(b.find('/'), b.size());
    if (a.substr(0, end_a) != b.substr(0, end_b)) break;
    ++count;
    a.remove_prefix(std::min(end_a + 1, a.size()));
    b.remove_prefix(std::min(end_b + 1, b.size()));
  }
  return count;
}

}  // namespace

Status Topology::check() const {
  std::set<std::string_view> known_hosts, known_cards;
  for (const auto& host : hosts) {
    if (host.empty()) return wrong("a host without a name");
    if (!known_hosts.insert(host).second) return wrong("host \"" + host + "\" is there twice");
  }
  std::map<int, std::string_view> host_of_process;
  for (const auto& card : cards) {
    if (card.name.empty()) return wrong("a card (" + card.device.str() + ") without a name");
    if (!known_cards.insert(card.name).second) return wrong("card \"" + card.name + "\" is there twice");
    if (!known_hosts.contains(card.host)) return wrong("card \"" + card.name + "\" is in no listed host (\"" + card.host + "\")");
    if (!is_rate(card.host_bandwidth)) return wrong("card \"" + card.name + "\" has a bandwidth that is no rate");
    if (card.process < -1) return wrong("card \"" + card.name + "\" is of process " + std::to_string(card.process));
    if (card.process < 0) continue;
    const auto [at, fresh] = host_of_process.emplace(card.process, card.host);
    if (!fresh && at->second != card.host) {
      return wrong("process " + std::to_string(card.process) + " brings cards of two hosts, \"" + std::string(at->second) +
                   "\" and \"" + card.host + "\"");
    }
  }
  int expected = 0;
  for (const auto& [process, host] : host_of_process) {
    if (process != expected) {
      return wrong("process " + std::to_string(expected) + " brings no card, and process " + std::to_string(process) + " does");
    }
    ++expected;
  }
  std::set<std::pair<std::string_view, std::string_view>> known_nics, known_links;
  for (const auto& nic : nics) {
    if (nic.name.empty()) return wrong("a network card without a name");
    if (!known_hosts.contains(nic.host))
      return wrong("network card \"" + nic.name + "\" is in no listed host (\"" + nic.host + "\")");
    if (!is_rate(nic.bandwidth)) return wrong("network card \"" + nic.name + "\" has a bandwidth that is no rate");
    if (!known_nics.insert({nic.host, nic.name}).second) return wrong("network card \"" + nic.name + "\" is there twice");
  }
  for (const auto& each : links) {
    for (const auto& end : {each.a, each.b}) {
      if (!known_cards.contains(end)) return wrong("a link ends at \"" + end + "\", which is no listed card");
    }
    if (!is_rate(each.bandwidth))
      return wrong("the link from \"" + each.a + "\" to \"" + each.b + "\" has a bandwidth that is no rate");
    if (each.a == each.b) return wrong("a link joins \"" + each.a + "\" to itself");
    if (!known_links.insert(std::minmax<std::string_view>(each.a, each.b)).second) {
      return wrong("the link from \"" + each.a + "\" to \"" + each.b + "\" is there twice");
    }
  }
  return {};
}

std::vector<const TopologyCard*> Topology::members() const {
  std::vector<const TopologyCard*> taking_part;
  for (const auto& card : cards) {
    if (card.process >= 0) taking_part.push_back(&card);
  }
  std::ranges::stable_sort(taking_part, {}, &TopologyCard::process);
  return taking_part;
}

int Topology::processes() const {
  int most = -1;
  for (const auto& card : cards) most = std::max(most, card.process);
  return most + 1;
}

std::vector<Device> Topology::devices_of(int process) const {
  std::vector<Device> devices;
  for (const auto& card : cards) {
    if (process >= 0 && card.process == process) devices.push_back(card.device);
  }
  return devices;
}

const TopologyCard* Topology::card(std::string_view name) const {
  const auto found = std::ranges::find(cards, name, &TopologyCard::name);
  return found == cards.end() ? nullptr : &*found;
}

const TopologyLink* Topology::link(std::string_view a, std::string_view b) const {
  const auto found = std::ranges::find_if(
      links, [&](const TopologyLink& each) { return (each.a == a && each.b == b) || (each.a == b && each.b == a); });
  return found == links.end() ? nullptr : &*found;
}

std::string_view Topology::distance(const TopologyCard& card, const TopologyNic& nic) {
  if (card.host != nic.host) return "";
  if (const std::size_t shared = shared_bridges(card.bus, nic.bus); shared > 0) return shared > 1 ? "switch" : "root";
  if (card.numa_node < 0 || nic.numa_node < 0) return "";
  return card.numa_node == nic.numa_node ? "node" : "system";
}

std::vector<const TopologyCard*> Topology::near(const TopologyNic& nic) const {
  for (const std::string_view wanted : {"switch", "root", "node"}) {
    std::vector<const TopologyCard*> found;
    for (const auto& card : cards) {
      if (!card.device.is_cpu() && distance(card, nic) == wanted) found.push_back(&card);
    }
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace hmc
