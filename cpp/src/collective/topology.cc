// Communicator::topology: every process tells what it sees of its host, and each puts the same picture together.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/wire.h"
#include "collective/communicator_state.h"
#include "collective/places.h"
#include "collective/rendezvous.h"

namespace hmc {
namespace {

// What a process says. The text is a Topology of one host, as it discovered it, without who takes part.
struct Report {
  std::string kernel;  // of its host
  Topology seen;
};

Bytes encode(const Report& report) {
  Bytes bytes;
  WireWriter(bytes).text(report.kernel).text(report.seen.str());
  return bytes;
}

std::optional<Report> decode(ByteSpan bytes) {
  WireReader reader(bytes);
  Report report;
  report.kernel = reader.text(64);
  const std::string text = reader.text(max_exchange_bytes);
  if (!reader.finish()) return std::nullopt;
  auto seen = Topology::parse(text);
  if (!seen.ok() || seen->hosts.size() != 1) return std::nullopt;
  report.seen = std::move(*seen);
  return report;
}

// A physical card: the kernel of its host, its vendor, its PCI address (or its number, where the vendor does not say).
using Place = std::tuple<std::string, std::string, std::string>;

Place place(const std::string& kernel, const TopologyCard& card) {
  return {kernel, std::string(card.device.vendor()), card.pci.empty() ? card.device.str() : card.pci};
}

class Picture {
 public:
  explicit Picture(const Group& group) : group_(group), given_(written_cards(group)) {
    const auto is_given = [](const TopologyCard* card) { return card != nullptr; };
    if (std::ranges::any_of(given_, is_given)) written_ = *group.world()->written();
  }

  // Ranks in order.
  void add(std::uint32_t rank, const Report& report) {
    const RankInfo& member = group_.rank(rank);
    const auto [number, first_of_process] = processes_.emplace(member.process, static_cast<int>(processes_.size()));
    TopologyCard card;
    const auto seen = std::ranges::find(report.seen.cards, member.device, &TopologyCard::device);
    if (seen != report.seen.cards.end()) card = *seen;
    const Place where = place(report.kernel, card);
    const TopologyCard* given = given_[rank];
    card.device = member.device;
    card.process = number->second;
    card.host = given != nullptr ? use_host(report.kernel, given->host) : host_of(report);
    card.name = given != nullptr ? given->name : free_name(card.host + "/" + card.device.str(), "#" + std::to_string(rank));
    if (given != nullptr) overlay(card, *given);
    if (!card.device.is_cpu()) names_at_[where].push_back(card.name);
    picture_.cards.push_back(std::move(card));
    if (first_of_process) add_surroundings(report);
  }

  Topology finish() {
    for (auto& [where, card] : others_) {
      if (names_at_.contains(where)) continue;
      card.name = free_name(card.host + "/" + card.device.str(), "@" + card.pci);
      names_at_[where].push_back(card.name);
      picture_.cards.push_back(std::move(card));
    }
    for (const auto& link : written_.links) {
      if (picture_.card(link.a) != nullptr && picture_.card(link.b) != nullptr) picture_.links.push_back(link);
    }
    for (const auto& [where, names] : names_at_) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        for (std::size_t j = i + 1; j < names.size(); ++j) add_link({names[i], names[j], "same card", 0});
      }
    }
    for (const auto& [ends, link] : links_) {
      for (const auto& a : names_at_[ends.first]) {
        for (const auto& b : names_at_[ends.second]) add_link({a, b, link.kind, link.bandwidth});
      }
    }
    return std::move(picture_);
  }

 private:
  static void overlay(TopologyCard& card, const TopologyCard& given) {
    if (!given.model.empty()) card.model = given.model;
    if (!given.pci.empty()) card.pci = given.pci;
    if (given.numa_node >= 0) card.numa_node = given.numa_node;
    if (given.memory_bytes > 0) card.memory_bytes = given.memory_bytes;
    if (given.host_bandwidth > 0) card.host_bandwidth = given.host_bandwidth;
    if (!given.bus.empty()) card.bus = given.bus;
  }

  // What the process sees beside its own Members.
  void add_surroundings(const Report& report) {
    const std::string host = host_of(report);
    for (TopologyCard card : report.seen.cards) {
      card.host = host;
      card.process = -1;
      if (!card.device.is_cpu()) others_.emplace(place(report.kernel, card), std::move(card));
    }
    for (const auto& link : report.seen.links) {
      const Place a = place(report.kernel, *report.seen.card(link.a)), b = place(report.kernel, *report.seen.card(link.b));
      if (a != b) links_.emplace(std::minmax(a, b), link);
    }
    if (!with_nics_.insert(report.kernel).second) return;
    for (TopologyNic nic : report.seen.nics) {
      nic.host = host;
      picture_.nics.push_back(std::move(nic));
    }
  }

  // Hosts of one name are told apart by their kernels.
  std::string host_of(const Report& report) {
    const auto known = hosts_.find(report.kernel);
    if (known != hosts_.end()) return known->second;
    std::string name = report.seen.hosts.front();
    for (int i = 2; std::ranges::find(picture_.hosts, name) != picture_.hosts.end(); ++i) {
      name = report.seen.hosts.front() + "-" + std::to_string(i);
    }
    return use_host(report.kernel, name);
  }
  std::string use_host(const std::string& kernel, const std::string& name) {
    if (std::ranges::find(picture_.hosts, name) == picture_.hosts.end()) picture_.hosts.push_back(name);
    hosts_.emplace(kernel, name);
    return name;
  }

  [[nodiscard]] std::string free_name(const std::string& name, const std::string& otherwise) const {
    return picture_.card(name) == nullptr && written_.card(name) == nullptr ? name : name + otherwise;
  }
  void add_link(TopologyLink link) {
    if (picture_.link(link.a, link.b) == nullptr) picture_.links.push_back(std::move(link));
  }

  const Group& group_;
  const std::vector<const TopologyCard*> given_;  // by rank
  Topology written_;
  Topology picture_;
  std::map<std::uint32_t, int> processes_;    // of the world, and as counted in the group
  std::map<std::string, std::string> hosts_;  // by kernel: the first name in use
  std::set<std::string> with_nics_;
  std::map<Place, std::vector<std::string>> names_at_;
  std::map<Place, TopologyCard> others_;
  std::map<std::pair<Place, Place>, TopologyLink> links_;
};

}  // namespace

Result<Topology> Communicator::topology(Deadline deadline) const {
  if (!state_) return Status(Code::invalid_argument, "the Communicator is empty");
  const auto& group = state_->group;
  HMC_TRY(group->open());
  Report own{kernel_id(), Topology::discover()};
  Bytes said = encode(own);
  if (said.size() > max_exchange_bytes) {  // a host of very many cards: their links are what grows with the square
    own.seen.links.clear();
    said = encode(own);
  }
  const std::vector<Bytes> mine(group->local().size(), said);
  HMC_ASSIGN(const auto reports, gather_bytes(group, group->local(), mine, CallKind::topology, deadline));
  Picture picture(*group);
  for (std::uint32_t r = 0; r < group->size(); ++r) {
    const auto report = decode(reports[r]);
    if (!report) return Status(Code::protocol, "topology: " + group->describe(r) + " sent a malformed report");
    picture.add(r, *report);
  }
  Topology whole = picture.finish();
  HMC_TRY(whole.check());
  return whole;
}

}  // namespace hmc
