#include "collective/places.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "collective/border_split.h"

namespace hmc {

std::vector<const TopologyCard*> written_cards(const Group& group) {
  std::vector<const TopologyCard*> cards(group.size(), nullptr);
  const auto& written = group.world()->written();
  if (!written) return cards;
  std::set<const TopologyCard*> taken;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const RankInfo& rank = group.rank(r);
    if (rank.written < 0) continue;
    for (const TopologyCard& card : written->cards) {
      if (card.process != rank.written || card.device != rank.device || !taken.insert(&card).second) continue;
      cards[r] = &card;
      break;
    }
  }
  return cards;
}

std::vector<std::uint32_t> hosts_of(const Group& group) {
  const auto cards = written_cards(group);
  std::map<std::pair<std::string, std::string>, std::uint32_t> known;  // a name that is written down, or a kernel
  std::vector<std::uint32_t> hosts;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const auto key =
        cards[r] != nullptr ? std::pair(cards[r]->host, std::string()) : std::pair(std::string(), group.rank(r).identity->kernel);
    hosts.push_back(known.emplace(key, static_cast<std::uint32_t>(known.size())).first->second);
  }
  return hosts;
}

double nic_bandwidth(const Topology& written, const std::string& host) {
  double most = 0;
  for (const TopologyNic& nic : written.nics) {
    if (nic.host == host) most = std::max(most, nic.bandwidth);
  }
  return most;
}

namespace {

double border_bandwidth(const Group& group, const std::vector<const TopologyCard*>& cards, const Island& island,
                        std::uint32_t rank) {
  if (cards[rank] == nullptr) return 0;
  const Topology& written = *group.world()->written();
  double most = 0;
  for (std::uint32_t other = 0; other < group.size(); ++other) {
    if (cards[other] == nullptr || std::ranges::binary_search(island.ranks, other)) continue;
    if (const TopologyLink* link = written.link(cards[rank]->name, cards[other]->name)) most = std::max(most, link->bandwidth);
  }
  return most > 0 ? most : nic_bandwidth(written, cards[rank]->host);
}

}  // namespace

std::vector<Island> islands_of(const Group& group, const Measurement* measured) {
  const auto hosts = hosts_of(group);
  const auto cards = written_cards(group);
  std::vector<Island> islands;
  std::map<std::pair<std::uint32_t, std::string>, std::size_t> known;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const auto key = std::pair(hosts[r], std::string(group.rank(r).device.vendor()));
    const std::size_t at = known.emplace(key, islands.size()).first->second;
    if (at == islands.size()) islands.emplace_back();
    islands[at].ranks.push_back(r);
  }
  bool all_written = true;
  for (Island& island : islands) {
    for (const std::uint32_t rank : island.ranks) island.bandwidths.push_back(border_bandwidth(group, cards, island, rank));
    all_written = all_written && std::ranges::all_of(island.bandwidths, [](double bandwidth) { return bandwidth > 0; });
  }
  for (Island& island : islands) {
    if (!all_written) island.bandwidths.assign(island.ranks.size(), assumed_border);
  }
  if (measured != nullptr) static_cast<void>(use_measured_borders(measured->links, islands));
  return islands;
}

}  // namespace hmc
