// Closing: the states in which one peer ends, in order by a goodbye of both sides, or at once. Owned by PeerImpl. Engine lock held
// throughout.
#pragma once

#include <cstdint>
#include <string>

#include "hmc/status.h"
#include "progress/one_shot_timer.h"

namespace hmc {

class PeerImpl;

class Closing {
 public:
  Closing(PeerImpl& peer, Engine& engine) noexcept : peer_(peer), timer_(engine) {}

  // Closes in order: nothing new is posted, what was posted ends, then both sides say bye.
  void leave();
  [[nodiscard]] bool in_progress() const noexcept { return state_ == State::draining || state_ == State::said; }
  // Something may have ended that it waits for.
  void advance();
  void advance_soon();
  void on_bye();
  void on_bye_ack();
  // Whether the peer's end of the control channel is the end in order. `goodbye`: it said so, and did not die.
  [[nodiscard]] bool complete_with_channel(bool goodbye) const noexcept;
  // What was posted has not all arrived, and will not unless a close in progress ends well.
  [[nodiscard]] bool loses() const noexcept { return cut_short_ || state_ == State::draining; }

  // The end, in order or not. False: it has ended before.
  bool end();
  // Everything is freed. False: it was before.
  bool tear_down() noexcept;
  [[nodiscard]] bool ended() const noexcept { return state_ == State::ended || torn_down(); }
  [[nodiscard]] bool torn_down() const noexcept { return state_ == State::torn_down; }

 private:
  enum class State : std::uint8_t {
    open,
    draining,   // nothing new is posted; what both sides have posted ends
    said,       // nothing of this side is in flight any more, and the peer was told so by bye; its own bye is awaited
    ended,      // every operation has its result
    torn_down,  // and nothing is left of connections, imports and grants but what the peer's process may still access
  };
  void begin(const Status& reason);
  [[nodiscard]] bool quiet();

  PeerImpl& peer_;  // its phase, messages and everything that may be in flight
  State state_ = State::open;
  bool bye_received_ = false;  // nothing of the peer is in flight any more
  bool cut_short_ = false;     // it ended while it was draining
  OneShotTimer timer_;         // for the acknowledgement of bye
};

}  // namespace hmc
