// World: the processes of one job as one of them sees them, what they tell each other about deaths, and the numbers of their
// groups.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "collective/fused/offers.h"
#include "collective/group_notices.h"
#include "collective/growths.h"
#include "collective/records.h"
#include "collective/shrinks.h"
#include "comm/context_state.h"
#include "hmc/topology.h"
#include "progress/engine.h"

namespace hmc {

class Bootstrap;
class Group;

// 200..201: bootstrap.h.
inline constexpr MessageType control_process_lost = 210;  // a process of the job is dead
inline constexpr MessageType control_group_broken = 211;  // a group takes no more collectives
inline constexpr MessageType control_look = 212;          // nothing to read: something has changed in a fused call
inline constexpr MessageType control_segment = 213;       // of a group's fused calls: its descriptor, or none
inline constexpr MessageType control_group_left = 218;    // job::Breakage: this process closed the Communicator

// Scopes of a group: its P2P calls use the number itself, its collectives the number with this bit, so that user tags never meet
// theirs.
inline constexpr std::uint32_t collective_scope_bit = 0x80000000U;
inline constexpr std::uint32_t world_scope = 1;

// What a process says of itself. Constant.
struct ProcessIdentity {
  std::string name;
  std::string kernel;  // of its host (kernel_id())
};

struct Process {
  ContextId id{};
  // Null once the process has departed and no open group has it any more.
  std::shared_ptr<const ProcessIdentity> identity;
  std::shared_ptr<PeerState> peer;
  bool lost = false;

  [[nodiscard]] bool is_self() const noexcept { return peer && peer->is_self(); }
  // Neither dead nor closed, as far as is known here.
  [[nodiscard]] bool alive() const noexcept {
    return !lost && peer && peer->phase() != PeerPhase::lost && peer->phase() != PeerPhase::closed;
  }
};

// Every member with the engine lock held. Owned by the Communicators of one init() or join() and by the Context's handlers; the
// Context outlives every call, because it makes them.
class World : public std::enable_shared_from_this<World> {
 public:
  // `own`: what this process says of itself. `written`: what the application wrote down.
  World(ContextState& context, job::Registration own, std::optional<Topology> written)
      : context_(context), engine_(context.engine()), own_(std::move(own)), offers_(context), written_(std::move(written)) {}
  // Sends control messages and deaths of `context` here.
  static void attach(const std::shared_ptr<World>& world);

  [[nodiscard]] ContextState& context() noexcept { return context_; }
  [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept { return engine_; }
  [[nodiscard]] const job::Registration& own() const noexcept { return own_; }  // constant: any thread
  // Grows: numbers stay, references do not.
  [[nodiscard]] const std::vector<Process>& processes() const noexcept { return processes_; }
  // What the application wrote down, if it did. Any thread.
  [[nodiscard]] const std::optional<Topology>& written() const noexcept { return written_; }
  // Returns the process's number in processes(), and adds it if it is new. Processes of init() have their ranks' numbers.
  std::uint32_t meet(const job::Registration& process);
  void set_bootstrap(std::shared_ptr<Bootstrap> bootstrap) { bootstrap_ = std::move(bootstrap); }
  // Any thread.
  [[nodiscard]] fused::Offers& offers() noexcept { return offers_; }

  void add(Group& group);
  // False: its Context ends with it, if `context_closes`. Else the others learn that this process sends nothing more in it.
  bool remove(Group& group, bool context_closes);
  // False: groups have no such number, or one of that number is here, or was: late messages of one must not reach another.
  bool reserve_scope(std::uint32_t scope) {
    const bool of_groups = scope != 0 && (scope & collective_scope_bit) == 0;  // 0: plain Peer calls
    return of_groups && scopes_.insert(scope).second;
  }

  // The group with that id that is open here, if any.
  [[nodiscard]] Group* find(std::uint64_t group_id) const noexcept;
  [[nodiscard]] Shrinks& shrinks() noexcept { return shrinks_; }
  [[nodiscard]] Growths& growths() noexcept { return growths_; }
  // The Context ends with the last open Communicator that keeps it.
  [[nodiscard]] bool ends_context(const Group& closed) const noexcept;

  // A group broke: tells the others, and the group if it is open here.
  void broke(const job::Breakage& breakage);
  // Sends that message about `group` (null: it is not here) to its processes, to those that are not connected once they are; of
  // control_group_broken to every process that is connected. Once for each, and for each earlier collective (others forward it as
  // often): a rank that receives a later one alone would wait for ranks that have given up the earlier.
  void tell(MessageType type, const job::Breakage& breakage, const Group* group);

 private:
  void on_control(PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds);
  void on_gone(PeerState& peer, const Status& reason);
  void on_lost(std::size_t process, const Status& reason, bool told);
  void release_departed();
  void read_lost(ByteSpan payload);
  void broadcast(MessageType type, ByteSpan payload);

  ContextState& context_;
  std::shared_ptr<Engine> engine_;
  const job::Registration own_;
  std::shared_ptr<Bootstrap> bootstrap_;
  fused::Offers offers_;
  std::vector<Process> processes_;
  const std::optional<Topology> written_;
  std::unordered_map<const PeerState*, std::size_t> index_;
  std::vector<Group*> groups_;
  Shrinks shrinks_{*this};
  Growths growths_{*this, *engine_};
  GroupNotices notices_;
  std::unordered_set<std::uint32_t> scopes_{world_scope};
};

// Tells `peer` once it is connected, and connects to it if need be.
void send_broken(const std::shared_ptr<PeerState>& peer, const job::Breakage& breakage);

}  // namespace hmc
