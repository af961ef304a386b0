// PeerEvents: on_joined and on_left of a Context, in order for each remote Context: one that connects again joins once its visit
// before has ended here. Owned by PeerTable. Engine lock held.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "control/channel.h"
#include "hmc/status.h"

namespace hmc {

class ContextImpl;
class PeerImpl;

class PeerEvents {
 public:
  explicit PeerEvents(ContextImpl& context) noexcept : context_(context) {}

  // It is connected.
  void joined(std::shared_ptr<PeerImpl> peer);
  // Nothing of it is in flight any more. Does nothing for a peer that never joined.
  void left(const PeerImpl& peer, const Status& reason);
  void clear() noexcept { visits_.clear(); }

 private:
  struct Visit {
    std::shared_ptr<PeerImpl> peer;
    bool reported = false;  // on_joined
    bool over = false;
    Status outcome;
  };
  void report(std::deque<Visit>& visits);

  ContextImpl& context_;
  std::map<ContextId, std::deque<Visit>> visits_;  // the first of each is reported, those behind it wait
};

}  // namespace hmc
