#include "collective/places.h"

#include <map>
#include <set>
#include <string>
#include <utility>

namespace hmc {

std::vector<const TopologyCard*> written_cards(const Group& group) {
  std::vector<const TopologyCard*> cards(group.size(), nullptr);
  const auto& written = group.world()->written();
  if (!written) return cards;
  std::set<const TopologyCard*> taken;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const RankInfo& rank = group.rank(r);
    for (const TopologyCard& card : written->cards) {
      if (card.process != static_cast<int>(rank.process) || card.device != rank.device || !taken.insert(&card).second) continue;
      cards[r] = &card;
      break;
    }
  }
  return cards;
}

std::vector<std::uint32_t> hosts_of(const Group& group) {
  const auto cards = written_cards(group);
  std::map<std::pair<std::string, std::uint32_t>, std::uint32_t> known;  // a name that is written down, or a kernel
  std::vector<std::uint32_t> hosts;
  const auto lock = group.engine()->lock();
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const std::uint32_t kernel = group.world()->processes()[group.rank(r).process].host;
    const auto key = cards[r] != nullptr ? std::pair(cards[r]->host, 0U) : std::pair(std::string(), kernel);
    hosts.push_back(known.emplace(key, static_cast<std::uint32_t>(known.size())).first->second);
  }
  return hosts;
}

}  // namespace hmc
