// PeerHandshake: from the first sight of a peer to ready: finding its address, hello in both directions, and the choice of the
// transport that carries messages. Owned by PeerImpl. Engine lock held throughout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/peer_state.h"
#include "comm/wire/codec.h"
#include "control/channel.h"
#include "progress/one_shot_timer.h"

namespace hmc {

class EndpointSlot;
class PeerImpl;

class PeerHandshake {
 public:
  using Action = std::function<void(const Status&)>;

  // `session`: names this side's connection to the peer.
  PeerHandshake(PeerImpl& peer, Engine& engine, std::uint64_t session) noexcept : peer_(peer), session_(session), timer_(engine) {}

  // ---- how it begins ----
  // The peer is a known rank, before it is connected: nobody accepts it.
  void expect(const ContextId& id, std::vector<std::string> addresses, std::string name);
  [[nodiscard]] bool expected() const noexcept { return expected_; }
  void connect();  // to the addresses, one after the other
  void attach_outgoing(std::unique_ptr<Channel> channel);
  void attach_incoming(std::unique_ptr<Channel> channel, const wire::Hello& hello);
  // The other Context prefers the connection that it made; ours goes away.
  void drop_outgoing();
  void join_self();  // the peer is this very Context

  // ---- its course ----
  void on_refused();  // the other side's own connection is on its way and wins
  void on_reply(const wire::Hello& hello);
  [[nodiscard]] bool greeted() const noexcept { return greeted_; }
  [[nodiscard]] bool accepting() const noexcept { return accepting_; }
  [[nodiscard]] std::uint64_t remote_session() const noexcept { return remote_session_; }
  // Not ready yet, and `slot` cannot be used.
  void on_slot_failed(const EndpointSlot& slot);
  [[nodiscard]] bool has_tried() const noexcept { return !tried_.empty(); }
  [[nodiscard]] Status no_transport() const;  // with every reason met

  // ---- its end ----
  // Runs `action` once, with ok when ready or with the failure, unless it has an owner, which is gone by then.
  void when_over(Action action, PeerState::ActionOwner owner = {});
  [[nodiscard]] std::size_t actions() const noexcept { return actions_.size(); }
  void complete();
  void end(const Status& outcome);

 private:
  void try_next_address(const Status& last);
  void on_channel(const std::string& address, Result<std::unique_ptr<Channel>> channel);
  [[nodiscard]] wire::Hello own_hello(std::string choice) const;
  bool take_hello(const wire::Hello& hello);
  void choose_message_transport();
  void start_timer();

  PeerImpl& peer_;  // its phase, control channel, connections and end
  const std::uint64_t session_;
  bool expected_ = false;
  std::vector<std::string> addresses_;  // of an expected peer
  std::size_t next_address_ = 0;
  bool outgoing_ = false;   // this side made the channel
  bool greeted_ = false;    // hello went both ways
  bool accepting_ = false;  // this side chooses the message transport
  std::uint64_t remote_session_ = 0;
  OneShotTimer timer_;
  std::function<void()> give_up_;   // the last attempt of connect()
  std::vector<std::string> tried_;  // message transports that failed, with reasons
  struct OwnedAction {
    Action run;
    PeerState::ActionOwner owner;
    [[nodiscard]] bool expired() const noexcept { return owner && owner->expired(); }
  };
  std::vector<OwnedAction> actions_;
  std::size_t sweep_at_ = 64;  // so many actions: those without their owners are discarded
};

}  // namespace hmc
