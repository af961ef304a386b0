// ControlLink: the control channel to one peer, and through it the end of the peer's access to memory of this process. Owned by
// PeerImpl. Engine lock held throughout.
//
// The peer ends its side of the channel after its endpoints. Where the channel breaks on this side first, the end of the peer's
// process is awaited instead.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/session/process_end.h"
#include "control/channel.h"
#include "progress/one_shot_timer.h"

namespace hmc {

class PeerImpl;

class ControlLink {
 public:
  ControlLink(PeerImpl& peer, Engine& engine) noexcept : peer_(peer), timer_(engine) {}

  [[nodiscard]] Channel* channel() noexcept { return channel_.get(); }
  void attach(std::unique_ptr<Channel> channel);  // which names the peer
  // Another channel is used instead: nothing more is read from this one.
  void refuse();
  void on_closed(const Status& reason);

  // Nothing more comes by the channel: the peer has ended its side, or broke it.
  [[nodiscard]] bool over() const noexcept { return over_; }
  // Whether the process of the peer may still read or write memory of this one by itself.
  [[nodiscard]] bool holds() const;

  // Ends this side, after its endpoints and once no BufferHold is of the peer's memory. `goodbye`: the peer is told that this is
  // the end in order.
  void end(bool goodbye);
  void on_holds_over();
  void drop();
  // The Context is going away: nothing is awaited. What would tell the peer that its memory is not used goes to `kept` where it is.
  void drop_now(std::vector<std::shared_ptr<const void>>& kept);
  [[nodiscard]] bool gone() const noexcept { return !channel_ && !death_; }

 private:
  PeerImpl& peer_;  // what it holds of this process's memory
  std::unique_ptr<Channel> channel_;
  std::optional<bool> goodbye_;  // of an end() that waits for the end of holds
  bool over_ = false;
  bool broken_ = false;  // over by this side's doing: the peer's end is not known by it
  std::unique_ptr<ProcessEnd> death_;
  OneShotTimer timer_;  // for the channel to send what is queued
};

}  // namespace hmc
