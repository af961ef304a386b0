// What a growth still waits for, until when, and why it cannot complete.
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "collective/growths.h"
#include "collective/world.h"

namespace hmc {

// ok, or which process of the group is dead.
Status Growths::unable(const Growing& growing) const {
  for (std::uint32_t i = 0; i < growing.processes_.size(); ++i) {
    const Process& process = world_.processes()[growing.processes_[i]];
    if (growing.coordinator_ && process.peer != growing.coordinator_) continue;  // the coordinator finds out
    if (process.alive()) continue;
    if (process.lost || (process.peer && process.peer->phase() == PeerPhase::lost))
      return {Code::peer_lost, growing.names_[i] + " is lost; shrink() makes a Communicator without it, which can grow"};
    return {Code::closed, growing.names_[i] + " has closed its Context"};
  }
  return {};
}

std::string Growths::awaited(const Growing& growing) const {
  if (growing.coordinator_) return "rank 0 (" + growing.coordinator_->identity().name + "), which coordinates";
  std::string text;
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  for (std::size_t i = 0; i < growing.joined_.size(); ++i) {
    if (!growing.joined_[i].here) add(growing.names_[i] + " to call grow()");
  }
  if (invitations_.has(growing.group_id_) && !invitations_.full(growing.group_id_)) {
    const std::size_t count = invitations_.count(growing.group_id_);
    const std::size_t missing = count - invitations_.applicants(growing.group_id_).size();
    add(std::to_string(missing) + " of " + std::to_string(count) + " invited processes to join");
  }
  return text;
}

Engine::TimerId Growths::after(std::uint32_t wait_ms, std::function<void(Growths&)> action) {
  return world_.engine()->at(Deadline::after(std::chrono::milliseconds(wait_ms)),
                             [weak = world_.weak_from_this(), action = std::move(action)] {
                               if (const auto world = weak.lock()) action(world->growths());
                             });
}

}  // namespace hmc
