// GroupNotices: messages about groups that broke or that a process left, kept where they cannot be delivered yet: for peers that
// are not connected, and for groups that this process has not made. Of a kind of message about a group one is kept for a peer, the
// latest. Beyond a bound the oldest are discarded and counted (group_notices.discarded).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collective/records.h"
#include "comm/peer_state.h"

namespace hmc {

// Owned by World. Engine lock held.
class GroupNotices {
 public:
  struct Notice {
    MessageType type;
    job::Breakage breakage;
  };

  // False: a message of that type, about the same collective of that group or an earlier one, was new before. An abort and a
  // collective that failed are two things.
  bool is_new(MessageType type, const job::Breakage& breakage);
  // What is_new() knows of messages of that type about a group: none follow.
  void forget(MessageType type, std::uint64_t group_id);
  // Sends the message to those of `peers` that are connected, and to the others when they connect. Connects to none.
  void send(const std::vector<std::shared_ptr<PeerState>>& peers, MessageType type, const job::Breakage& breakage);
  // To the same peers, in the order of messages: this process sends and receives no more in `scope`.
  void send_left(const std::vector<std::shared_ptr<PeerState>>& peers, std::uint64_t group_id, std::uint32_t scope);
  // Of a group that is not here: for take(), when it is made. Of several of a kind the earliest counts.
  void keep(MessageType type, const job::Breakage& breakage, ContextState& context);
  // The kept notices of that group, which are kept no longer.
  [[nodiscard]] std::vector<Notice> take(std::uint64_t group_id);
  [[nodiscard]] bool full() const noexcept;  // so many were new: of groups that are not here no more are to be told
  [[nodiscard]] std::size_t known() const noexcept { return told_.size(); }

 private:
  using Key = std::tuple<std::uint64_t, MessageType, bool>;  // the group's id; whether it was aborted
  struct Message {
    Key key;
    std::shared_ptr<const Bytes> payload;  // of a control message; null: of send_left()
    std::uint32_t scope = 0;
  };
  // Of one peer, in order.
  struct Waiting {
    std::map<std::uint64_t, Message> messages;  // by number
    std::map<Key, std::uint64_t> numbers;
    std::uint64_t next = 0;
  };
  using Unsent = std::unordered_map<const PeerState*, Waiting>;
  void send(PeerState& peer, const Message& message);
  static void deliver(PeerState& peer, const Message& message);

  // Shared with the peers, which may end later.
  const std::shared_ptr<Unsent> unsent_ = std::make_shared<Unsent>();
  struct Told {
    std::uint64_t sequence;  // of the earliest collective
    std::uint64_t number;
  };
  std::map<Key, Told> told_;
  std::map<std::uint64_t, Key> told_order_;  // by number; beyond a bound the oldest are forgotten
  std::uint64_t next_told_ = 0;
  std::map<std::uint64_t, Notice> kept_;  // by number, in order
  std::map<Key, std::uint64_t> kept_numbers_;
  std::uint64_t next_kept_ = 0;
};

}  // namespace hmc
