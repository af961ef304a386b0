#include "transport/verbs/route.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "base/fd.h"

namespace hmc::verbs {
namespace {

constexpr std::uint64_t slowest_share = 4;

bool speak(const PortInfo& left, const PortInfo& right) noexcept {
  return left.ethernet == right.ethernet && (!left.ethernet || is_ipv4(left.gid) == is_ipv4(right.gid));
}

// Would the kernel send from `own` to `theirs`? A datagram socket is asked; nothing is sent.
bool routed(const PortInfo& own, const PortInfo& theirs) noexcept {
  if (!own.ethernet) return false;
  sockaddr_in6 target{};
  target.sin6_family = AF_INET6;
  target.sin6_port = htons(4791);  // RoCE v2
  std::memcpy(&target.sin6_addr, theirs.gid.data(), gid_bytes);
  const UniqueFd probe(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || connect(probe.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) return false;
  sockaddr_in6 source{};
  socklen_t size = sizeof source;
  return getsockname(probe.get(), reinterpret_cast<sockaddr*>(&source), &size) == 0 &&
         std::memcmp(&source.sin6_addr, own.gid.data(), gid_bytes) == 0;
}

// Bits that two addresses have in common at their start.
unsigned common_bits(const Gid& left, const Gid& right) noexcept {
  unsigned bits = 0;
  for (std::size_t i = 0; i < gid_bytes; ++i) {
    const auto difference = static_cast<std::uint8_t>(left[i] ^ right[i]);
    bits += static_cast<unsigned>(std::countl_zero(difference));
    if (difference != 0) break;
  }
  return bits;
}

}  // namespace

std::vector<Pairing> choose_ports(std::span<const PortInfo> own, std::span<const PortInfo> theirs, std::size_t most) {
  using Rank = std::tuple<std::uint64_t, bool, unsigned>;
  std::vector<std::pair<Rank, Pairing>> all;
  const bool choice = own.size() > 1;
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (std::size_t k = 0; k < theirs.size(); ++k) {
      if (!speak(own[i], theirs[k])) continue;
      const std::uint64_t rate = std::min(own[i].rate, theirs[k].rate);
      all.push_back({{rate, choice && routed(own[i], theirs[k]), common_bits(own[i].gid, theirs[k].gid)}, {i, k, rate}});
    }
  }
  std::ranges::stable_sort(all, std::greater(), [](const auto& each) { return each.first; });
  std::vector<Pairing> chosen;
  for (const auto& each : all) {
    const Pairing& pairing = each.second;
    const auto taken = [&](const Pairing& other) { return other.own == pairing.own || other.theirs == pairing.theirs; };
    if (chosen.size() == most || std::ranges::any_of(chosen, taken)) continue;
    if (!chosen.empty() && pairing.rate < chosen.front().rate / slowest_share) continue;
    chosen.push_back(pairing);
  }
  return chosen;
}

}  // namespace hmc::verbs
