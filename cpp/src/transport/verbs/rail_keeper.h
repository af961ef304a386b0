// RailKeeper: the life of an endpoint's rails: how they connect, how one that fails is left, and how it comes back.
//
// A rail that fails hands its share to the others. Each side closes both its ends of it, takes the messages that had come, and says
// so on every rail that is left. Only when both sides have done so the owner decides what was in flight on it (RailOwner::on_gone).
//
// Then nothing of its former life can arrive any more, and it may come back. The new one has queue pairs of its own, and a number
// (`life`) that its messages carry, so that none of the former is taken for one of it. One side leads: when its port is active it
// makes its end and offers it on the rails that live; the other makes its end and answers likewise; the leader connects and sends a
// message over the new rail. Whoever gets something back over it (the leader the acknowledgement, the other that message) uses it
// from then on. One that does not carry is left again as any that fails, and is tried again later, ever more rarely. It stands
// behind the others (`rank`): signals go on by the rail that they took.
//
// The network card finds out that the peer does not answer, by its timeout and its retries (Patience). Some do not always: where a
// port or its driver hangs, nothing is reported at all, and Soft-RoCE takes seven retries for endless ones. So a rail with work on
// which nothing has come back at several looks in a row is given up. Looks, not a clock: between two of them a process that was
// stopped, or whose owner polls late, takes what has come.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/verbs/messages.h"
#include "transport/verbs/rail.h"
#include "transport/verbs/shared.h"

namespace hmc::verbs {

// The endpoint.
class RailOwner {
 public:
  // Both sides have left the rail, and the peer has told which signals it took.
  virtual void on_gone(Rail& rail) = 0;
  // No rail is left, or the peer breaks the protocol.
  virtual void on_over(const Status& reason) = 0;
  virtual void advance() = 0;
  // It lives while this is held.
  virtual std::shared_ptr<void> hold() = 0;

 protected:
  ~RailOwner() = default;
};

// The Link owns it, and the rails and their memory. Engine lock held. After on_over() stop() has been called.
class RailKeeper {
 public:
  RailKeeper(const Shared& shared, RailOwner& owner, Rails& rails, MessageMemory& memory) noexcept
      : shared_(shared), owner_(owner), rails_(rails), memory_(memory) {}

  // A rail for each card, or as many as there is room for. `number`: the link's.
  Status open(const std::vector<Nic*>& nics, std::uint32_t number);
  // Fails if the first rail does.
  Status connect(const Address& peer);
  void stop();

  // Posts work, and watches the rails until a look finds none. False: it did not go; the rail has failed, perhaps the link.
  bool submit(Rail& rail, Batch& batch);
  // The rail has failed.
  void lose(Rail& rail, const Status& reason);
  // The requester's queue pair of a rail starts over after an access error, all that was posted to it having come back.
  void restart_outbound(Rail& rail);
  // A receive has come back, and what it held has been taken. `good`: it was executed.
  void on_receive_done(Rail& rail, unsigned slot, bool good);
  // Of the peer, about a rail. False: the link is over.
  bool on_message(const MessageHead& head, ByteSpan body);
  // Something has come back over a rail.
  void on_answer(Rail& rail) {
    if (rail.state == Rail::State::joining) join(rail);
  }

 private:
  Status connect(Rail& rail);
  Status ready_for_messages();
  Status post_receives(Rail& rail, unsigned count);
  void drained(Rail& rail);
  void decide(Rail& rail);
  void plan_return(const Rail& rail);
  void offer_rails();
  Status renew(std::size_t index, std::uint16_t life, std::uint32_t rank);
  bool on_offer(const MessageHead& head, ByteSpan body);
  void join(Rail& rail);
  void watch();
  void look();

  const Shared& shared_;
  RailOwner& owner_;
  Rails& rails_;
  MessageMemory& memory_;
  bool stopped_ = false;
  bool leads_ = false;  // it is this side that reconnects rails
  std::uint32_t last_rank_ = 0;
  Engine::TimerId return_timer_ = 0;
  Engine::TimerId watch_timer_ = 0;
};

}  // namespace hmc::verbs
