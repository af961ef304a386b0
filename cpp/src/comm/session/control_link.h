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

  // Ends this side once no BufferHold uses the peer's memory. The endpoints have ended before. `goodbye`: tells the peer that it
  // was closed in order.
  void end(bool goodbye);
  // The last BufferHold of the peer's memory has ended.
  void on_holds_over();
  void drop();
  // The Context ends: nothing is awaited. Where a BufferHold uses the peer's memory, the channel goes to `kept` and stays open: its
  // end would say that nothing does.
  void drop_now(std::vector<std::shared_ptr<const void>>& kept);
  [[nodiscard]] bool gone() const noexcept { return !channel_ && !death_; }

 private:
  PeerImpl& peer_;  // what it holds of this process's memory
  std::unique_ptr<Channel> channel_;
  std::optional<bool> goodbye_;  // the argument of an end() that waits for BufferHolds
  bool over_ = false;
  bool broken_ = false;  // over by this side's doing: the peer's end is not known by it
  std::unique_ptr<ProcessEnd> death_;
  OneShotTimer timer_;  // for the channel to send what is queued
};

}  // namespace hmc
