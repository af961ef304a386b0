#include "transport/verbs/route.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/fd.h"

namespace hmc::verbs {
namespace {

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

}  // namespace

std::optional<Pairing> choose_ports(std::span<const PortInfo> own, std::span<const PortInfo> theirs) {
  std::optional<Pairing> best;
  std::tuple<std::uint64_t, bool> best_rank;
  const bool choice = own.size() > 1;
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (const PortInfo& other : theirs) {
      if (!speak(own[i], other)) continue;
      const std::uint64_t rate = std::min(own[i].rate, other.rate);
      const std::tuple rank(rate, choice && routed(own[i], other));
      if (best && rank <= best_rank) continue;
      best = Pairing{i, rate};
      best_rank = rank;
    }
  }
  return best;
}

}  // namespace hmc::verbs
