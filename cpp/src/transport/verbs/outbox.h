// Outbox: the messages that an endpoint sends: signals, the credit that it returns, and what it says of its rails.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "transport/kit/active_messages.h"
#include "transport/verbs/messages.h"
#include "transport/verbs/rail.h"
#include "transport/verbs/signal_heads.h"

namespace hmc::verbs {

// The Link owns it. Engine lock held.
class Outbox {
 public:
  Outbox(const Rails& rails, kit::ActiveMessageQueue& waiting) noexcept : rails_(rails), waiting_(waiting) {}

  MessageMemory memory;
  Credit credit;
  SignalHeads heads;          // that the peer was told
  std::deque<Record> resend;  // signals of rails that are gone, in their slots

  // Something is to be sent.
  [[nodiscard]] bool waits() const noexcept { return !waiting_.empty() || !resend.empty() || credit.due(); }
  [[nodiscard]] bool room_for_signal(const Rail& rail) const noexcept {
    return credit.any() && memory.room_for_signal() && !rail.out.full();
  }
  // May a signal that is new go by this rail now, ahead of none that is older?
  [[nodiscard]] bool takes_signal(const Rail& rail) const noexcept {
    return &rail == rails_.for_messages() && resend.empty() && waiting_.empty() && room_for_signal(rail);
  }

  // Adds a work request to a batch of a rail.
  void add(Rail& rail, Batch& batch, Record one);
  void add_message(Rail& rail, Batch& batch, MessageHead head, std::uint64_t op = 0, ByteSpan first = {}, ByteSpan second = {});
  // What is for this rail alone, and the messages that wait, as far as there is room. False: no data may follow.
  bool fill(Rail& rail, Batch& batch);
  // The peer's answer says whether it lives, and that the rail carries.
  void fill_probe(Rail& rail, Batch& batch);
  // The immediate by which a signal that this rail takes goes with the bytes of its put. None: it does not.
  [[nodiscard]] std::optional<std::uint32_t> immediate(Rail& rail, Batch& batch, ByteSpan signal);

 private:
  void fill_messages(Rail& rail, Batch& batch);
  void announce(Rail& rail, Batch& batch);

  const Rails& rails_;
  kit::ActiveMessageQueue& waiting_;
  RecentHeads seen_;  // heads that the peer was not told
};

}  // namespace hmc::verbs
