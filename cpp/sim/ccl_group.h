// What the ranks of a simulated collective library share: host memory, through which they pass chunks of their arrays. Ranks may be
// threads, or processes of one user on one host.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace hmc::sim {

// The number of a group: where the memory of the process that made it is. Other libraries' are refused.
using GroupId = std::array<char, 128>;

class CclGroup {
 public:
  static constexpr std::uint32_t most_ranks = 32;
  static constexpr std::size_t chunk_bytes = 256 << 10;

  // False: the system refuses. The memory stays until a rank of this process has joined, with all others.
  static bool make_id(GroupId& id);
  // Waits for all ranks. invalid: there is no such group, or no such rank in it.
  enum class Joined { yes, invalid, duplicate_device };
  static Joined join(const GroupId& id, std::uint32_t rank, std::uint32_t ranks, unsigned pci_bus,
                     std::unique_ptr<CclGroup>& group);
  CclGroup(const CclGroup&) = delete;
  CclGroup& operator=(const CclGroup&) = delete;
  ~CclGroup();

  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }
  // What `rank` gives the others of the present chunk: chunk_bytes.
  [[nodiscard]] std::byte* given(std::uint32_t rank) const;
  // Waits until all ranks have come here as often. False: `ended` meanwhile.
  bool meet(const std::atomic<bool>& ended);

 private:
  struct Shared;
  CclGroup(Shared* shared, std::uint32_t rank, std::uint32_t ranks) : shared_(shared), rank_(rank), ranks_(ranks) {}

  Shared* const shared_;
  const std::uint32_t rank_, ranks_;
  std::uint64_t meetings_ = 0;
};

}  // namespace hmc::sim
