// Closing: the end of one peer, in order by a goodbye of both sides, or at once. Owned by PeerImpl. Engine lock held throughout.
//
// Memory that the peer's process accesses by itself (LocalRegion::peer_moves) outlives end(): operations and imports on it end when
// the peer has ended its side of the control channel, which it does after its endpoints, or when its process is dead.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/peer_state.h"
#include "hmc/status.h"
#include "progress/one_shot_timer.h"

namespace hmc {

class PeerImpl;

class Closing {
 public:
  Closing(PeerImpl& peer, Engine& engine) noexcept : peer_(peer), timer_(engine) {}

  // Closes in order: nothing new is posted, what was posted ends, then both sides say bye.
  void leave();
  // After leave(): ends the peer where that still waits for its connection.
  void give_up();
  [[nodiscard]] bool in_progress() const noexcept { return state_ == State::draining || state_ == State::said; }
  // Something may have ended that it waits for.
  void advance();
  void advance_soon();
  // A message of a group was accepted by the control channel; one was received.
  void group_message_sent() noexcept { ++group_messages_sent_; }
  void on_group_message();
  // `group_messages`: how many the peer has sent. The bye takes effect once they have been received.
  void on_bye(std::uint64_t group_messages);
  void on_bye_ack();
  // The peer has reconnected; the end of this connection is not read yet. Delivers what the peer sent by it, then drains.
  void on_replaced();
  // What the peer sent before is delivered first.
  void on_channel_closed(const Status& reason);

  // Ends at once: pending operations complete with `reason`, the rest is taken down outside the current call chain.
  void end(const Status& reason, PeerPhase phase);
  // The Context is going away: nothing is awaited. Memory that the peer may still write goes to `kept`.
  void tear_down_now(std::vector<std::shared_ptr<const void>>& kept);
  // Nothing of the peer is left but the object: everything freed, and its process has let go of this one's memory.
  [[nodiscard]] bool gone() const noexcept;
  // While it closes, or after: what has not ended yet, as text for people; empty if nothing.
  [[nodiscard]] std::string unfinished() const;

 private:
  enum class State : std::uint8_t {
    open,
    draining,   // nothing new is posted; what both sides have posted ends
    said,       // nothing of this side is in flight any more, and the peer was told so by bye; its own bye is awaited
    ended,      // every operation has its result
    torn_down,  // and nothing is left of connections, imports and grants but what the peer's process may still access
  };
  [[nodiscard]] bool ended() const noexcept { return state_ == State::ended || state_ == State::torn_down; }
  void take_bye();
  void begin(const Status& reason);
  void await_acknowledgement();
  [[nodiscard]] bool unsent() const;
  void receive_rest();
  [[nodiscard]] bool quiet();
  [[nodiscard]] std::string loss(std::string_view reason) const;
  void lose(std::string_view reason = {});  // what loss() says is reported by the Context's close
  void tear_down();

  PeerImpl& peer_;  // its phase, and all its parts: what may be in flight, and what ends with it
  State state_ = State::open;
  bool leaves_ = false;  // by leave()
  std::uint64_t group_messages_sent_ = 0, group_messages_received_ = 0;
  std::optional<std::uint64_t> bye_after_;  // group messages; none: no bye has arrived
  bool bye_received_ = false;               // and nothing of the peer is in flight any more
  bool cut_short_ = false;                  // it ended while it was draining, or before all had left this side
  OneShotTimer timer_;                      // for the acknowledgement of bye
};

}  // namespace hmc
