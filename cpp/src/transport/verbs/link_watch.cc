// Link: a card that neither finishes nor fails what it was given.
//
// That nobody answers is the card's to find out, by its timeout and its retries (Patience), and far sooner. Some do not always:
// where a port or its driver hangs, nothing is reported at all, and Soft-RoCE takes seven retries for endless ones. While something
// is with a card the link looks at its lanes now and then, and gives up one on which nothing has come back at several looks in a
// row. Looks, not a clock: between two of them a process that was stopped, or whose owner polls late, takes what has come.
#include <string>
#include <utility>

#include "transport/verbs/link.h"

namespace hmc::verbs {
namespace {

constexpr unsigned looks = 4;

}  // namespace

// Set while something is under way, and until the look that finds nothing any more: idle is free.
void Link::watch() {
  watch_timer_ = shared_->engine->at(Deadline::after_seconds(shared_->silence_seconds / looks), [this] {
    watch_timer_ = 0;
    look();
  });
}

void Link::look() {
  const auto keep = shared_from_this();
  bool any = false;
  for (std::size_t i = 0; i < lanes_.size() && ready_; ++i) {
    Lane& lane = *lanes_[i];
    const bool draining = lane.state == Lane::State::draining;
    if (draining ? !lane.has_lived : !lane.up() || lane.posted() == 0) continue;
    any = true;
    const Lane::Mark now{lane.state, lane.generation, lane.oldest, draining ? lane.receives_posted : 0};
    if (now != lane.seen) lane.looks_in_vain = 0;
    lane.seen = now;
    if (lane.looks_in_vain++ < looks) continue;
    const Status reason(Code::peer_lost, lane.nic.name() +
                                             ": the network card has neither finished nor failed what it was given for " +
                                             std::to_string(static_cast<int>(shared_->silence_seconds)) + " s (HMC_VERBS_SILENCE)");
    // What a card that gives no receives back has acknowledged may never be told here. Only the whole link's end counts signals
    // anew.
    draining ? fail(reason) : lose(lane, reason);
  }
  if (!ready_) return;
  if (any && watch_timer_ == 0) watch();
  advance();
}

}  // namespace hmc::verbs
