#include "progress/source.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/random.h"

namespace hmc {
namespace {

// FNV-1a: nobody gains by a collision, who would share the lot of the other source.
Source hashed(std::uint8_t kind, const void* bytes, std::size_t size) noexcept {
  constexpr std::uint64_t start = 0xcbf29ce484222325, prime = 0x100000001b3;
  std::uint64_t hash = (start ^ kind) * prime;
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ at[i]) * prime;
  return hash;
}

}  // namespace

Source source_of_process(int unix_socket) noexcept {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) peer = {};
  const std::uint32_t who[2] = {static_cast<std::uint32_t>(peer.uid), static_cast<std::uint32_t>(peer.pid)};
  return hashed(AF_UNIX, who, sizeof who);
}

Source source_of_address(const SocketAddress& remote) noexcept {
  constexpr std::size_t prefix_bytes = 8;
  if (remote.family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in*>(&remote.storage)->sin_addr;
    return hashed(AF_INET, &v4, sizeof v4);
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&remote.storage)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return hashed(AF_INET, v6.s6_addr + 12, sizeof(in_addr));
  return hashed(AF_INET6, v6.s6_addr, prefix_bytes);
}

std::size_t choose_discarded(std::span<const Source> clients) {
  std::unordered_map<Source, std::size_t> counts;
  for (const Source source : clients) ++counts[source];
  std::size_t most = 0;
  for (const auto& [source, count] : counts) most = std::max(most, count);
  // Of several that have as many, any.
  std::size_t candidates = 0;
  for (const Source source : clients) candidates += counts[source] == most ? 1U : 0U;
  std::size_t chosen = static_cast<std::size_t>(random_u64() % candidates);
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (counts[clients[i]] == most && chosen-- == 0) return i;
  }
  return 0;
}

}  // namespace hmc
