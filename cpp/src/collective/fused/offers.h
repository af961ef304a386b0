// Offers: how the processes of a group on one host come to map the same Segment: that of rank 0 makes it and sends the others its
// descriptor. Owned by World.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collective/fused/segment.h"
#include "collective/recent_ids.h"
#include "comm/context_state.h"
#include "hmc/deadline.h"

namespace hmc {

class Group;

namespace fused {

class Offers {
 public:
  explicit Offers(ContextState& context) noexcept : context_(context) {}

  // Whether its ranks are on one host, and as many as share a segment. Alike at every rank.
  [[nodiscard]] static bool may_share(const Group& group) noexcept;

  // ---- engine lock not held ----
  // The segment of `group`, which every process of it asks for alike; null: none, because the ranks may not share one, or
  // something refuses (HMC_FUSED, the transports, memory), or because the deadline passed, rank 0 is gone, another thread closed
  // the group, or `parent`, that it is made of, takes no more collectives. `usable`: whether this process can map a segment. Where
  // rank 0's cannot, it tells the others.
  std::shared_ptr<Segment> share(const Group& group, bool usable, Deadline deadline, const Group* parent = nullptr);

  // ---- engine lock held ----
  void on_message(PeerState& peer, ByteSpan payload, std::vector<UniqueFd> fds);
  void on_peer_gone(const PeerState& peer);
  void on_group_gone(std::uint64_t group);  // this process has left it: its segment is not kept, also if it comes later
  [[nodiscard]] bool is_gone(std::uint64_t group) const { return gone_.contains(group); }

 private:
  using Key = std::pair<const PeerState*, std::uint64_t>;  // who sent it, and the group's id
  struct Received {
    Key key;
    UniqueFd fd;  // none: there is no segment
  };
  [[nodiscard]] bool wanted() const;
  std::shared_ptr<Segment> make(const Group& group, bool usable);
  std::shared_ptr<Segment> take(const Group& group, bool usable, Deadline deadline, const Group* parent);

  [[nodiscard]] std::vector<Received>::iterator find(const Key& key);

  ContextState& context_;
  std::vector<Received> received_;  // the oldest first
  RecentIds gone_;                  // groups that this process has left
};

}  // namespace fused
}  // namespace hmc
