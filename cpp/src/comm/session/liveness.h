// Liveness: asks a peer whether its process lives. Owned by PeerImpl; engine lock held throughout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "progress/engine.h"

namespace hmc {

class PeerState;

class Liveness {
 public:
  explicit Liveness(PeerState& peer) noexcept : peer_(peer) {}

  // A vendor's call on memory of a dying process fails before the death shows, and is reported as the peer's loss: asks the peer,
  // and runs `action` once it has answered, or has not for 2 s; where it ends instead, never. False: it cannot be asked.
  bool ask(std::function<void()> action);
  // The peer's answer. False: it was not asked.
  [[nodiscard]] bool answer(std::uint64_t question);
  // The peer has ended: nothing is answered.
  void end();

 private:
  struct Question {
    std::function<void()> action;
    Engine::TimerId timer;
  };
  void over(std::uint64_t question);

  PeerState& peer_;
  std::uint64_t asked_ = 0, answered_ = 0;
  std::map<std::uint64_t, Question> questions_;  // in flight
};

}  // namespace hmc
