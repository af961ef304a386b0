// PeerImpl: one remote Context. From its first channel to its end: handshake, endpoints, routes, what is pending, imports.
// Everything with the engine lock held unless said otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/buffers/buffers.h"
#include "comm/buffers/grants.h"
#include "comm/buffers/imports.h"
#include "comm/connection/connections.h"
#include "comm/connection/message_connection.h"
#include "comm/onesided/notify.h"
#include "comm/onesided/post_queue.h"
#include "comm/onesided/work_list.h"
#include "comm/peer_state.h"
#include "comm/routing/peer_routes.h"
#include "comm/session/liveness.h"
#include "comm/session/process_end.h"
#include "comm/wire/codec.h"
#include "progress/one_shot_timer.h"

namespace hmc {

class ContextImpl;

class PeerImpl final : public PeerState, private ChannelSink {
 public:
  PeerImpl(const std::shared_ptr<ContextImpl>& context, std::uint64_t session, bool self);
  ~PeerImpl() override;

  // ---- PeerState ----
  [[nodiscard]] ContextState& context() noexcept override;
  [[nodiscard]] PeerPhase phase() const noexcept override { return phase_; }
  [[nodiscard]] const Status& failure() const noexcept override { return failure_; }
  [[nodiscard]] const PeerIdentity& identity() const noexcept override { return identity_; }
  [[nodiscard]] bool is_self() const noexcept override { return self_; }
  [[nodiscard]] bool carries() const noexcept override { return phase_ == PeerPhase::ready || closing_ != Closing::no; }
  void operation_over() override {
    if (closing_ != Closing::no) advance_closing_soon();
  }
  void when_ready(std::function<void(const Status&)> action) override;
  Status signal(ByteSpan head, ByteSpan body) override { return messages_.signal(head, body); }
  [[nodiscard]] const Capabilities& message_capabilities() const noexcept override { return messages_.capabilities(); }
  [[nodiscard]] PeerRoutes& routes() noexcept override { return routes_; }
  Endpoint* endpoint(std::string_view transport_name) noexcept override { return connections_.endpoint(transport_name); }
  Status send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {}) override;
  [[nodiscard]] Liveness& liveness() noexcept override { return liveness_; }
  void fail(const Status& reason) override { end(reason, PeerPhase::lost); }
  void broken(std::string_view what);  // the peer broke the protocol

  // ---- constants and snapshots, any thread ----
  [[nodiscard]] ContextImpl& impl() noexcept { return context_; }
  [[nodiscard]] const std::shared_ptr<NotifySlot>& notify_slot() const noexcept { return notify_slot_; }
  [[nodiscard]] std::uint64_t session() const noexcept { return session_; }
  [[nodiscard]] std::string describe() const;  // "peer host:42 (unix:pid 42)"

  // ---- joining (handshake.cc) ----
  void expect(const ContextId& id, std::vector<std::string> addresses, std::string name);
  void start_connecting();
  void attach_outgoing(std::unique_ptr<Channel> channel);
  void attach_incoming(std::unique_ptr<Channel> channel, const wire::Hello& hello);
  // The other Context prefers the connection that it made; ours goes away.
  void drop_outgoing();
  void become_self();
  [[nodiscard]] bool has_channel() const noexcept { return channel_ != nullptr; }
  [[nodiscard]] bool accepting() const noexcept { return accepting_; }
  [[nodiscard]] bool expected() const noexcept { return expected_; }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  [[nodiscard]] bool attached() const noexcept { return channel_ != nullptr && greeted_; }
  [[nodiscard]] std::uint64_t remote_session() const noexcept { return remote_session_; }

  // ---- closing (closing.cc) ----
  // Closes in order: nothing new is posted, what was posted ends, then both sides say bye.
  void leave();
  [[nodiscard]] bool closing() const noexcept { return closing_ != Closing::no; }
  // While it closes, or after: what has not ended yet, as text for people; empty if nothing.
  [[nodiscard]] std::string unfinished() const;
  // Whether the process of the peer may still read or write memory of this one by itself.
  [[nodiscard]] bool holds() const;

  // ---- its end (departure.cc) ----
  // Ends at once: pending operations complete with `reason`, the rest is taken down outside the current call chain.
  void end(const Status& reason, PeerPhase phase);
  void tear_down();  // end()'s second half, outside the current call chain
  // The Context is going away: nothing is awaited. Memory that the peer may still write goes to `kept`.
  void tear_down_now(std::vector<std::shared_ptr<const void>>& kept);
  // Nothing of it is left but the object: everything freed, and the peer's process has let go of this one's memory.
  [[nodiscard]] bool gone() const noexcept { return torn_down_ && !channel_ && !death_; }

  // ---- connections ----
  [[nodiscard]] Connections& connections() noexcept { return connections_; }
  [[nodiscard]] MessageConnection& messages() noexcept { return messages_; }
  void on_signal(EndpointSlot& slot, ByteSpan signal);
  // While connecting: `slot` cannot be used.
  void transport_failed(const EndpointSlot& slot);
  void become_ready();

  // ---- posting (pump.cc) ----
  // True: an operation that must stay behind what is pending may be posted now.
  [[nodiscard]] bool may_post() const noexcept { return posts_.passable() && phase_ == PeerPhase::ready; }
  [[nodiscard]] PostQueue& posts() noexcept override { return posts_; }
  // Posts what can be posted. True if anything moved.
  bool pump();
  [[nodiscard]] WorkList& works() noexcept { return works_; }
  void operation_done(EndpointSlot& slot);

  // ---- buffers ----
  [[nodiscard]] Imports& imports() noexcept { return imports_; }
  [[nodiscard]] Grants& grants() noexcept { return grants_; }

 private:
  void on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) override;
  void on_closed(const Status& reason) override;

  void handle(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds);

  void begin_closing(const Status& reason);
  void on_bye();
  void on_bye_ack();
  void advance_closing();
  void advance_closing_soon();
  [[nodiscard]] bool quiet();
  void let_go();

  void try_next_address(const Status& last);
  wire::Hello own_hello(std::string choice) const;
  bool take_hello(const wire::Hello& hello);
  void on_hello_reply(const wire::Hello& hello);
  void choose_message_transport();
  [[nodiscard]] Status no_transport() const;  // with every reason met
  void run_ready_actions(const Status& status);

  void drop_channel();

  const std::shared_ptr<ContextImpl>
      owner_;  // a cycle until the Context is closed, which forgets its peers; null for self, which it keeps
  ContextImpl& context_;
  const std::uint64_t session_;
  const bool self_;
  PeerPhase phase_ = PeerPhase::idle;
  Status failure_;
  PeerIdentity identity_;
  bool joined_ = false;  // on_joined was told
  enum class Closing : std::uint8_t {
    no,        // not yet, or end() was called
    draining,  // nothing new is posted; what both sides have posted ends
    said,      // nothing of this side is in flight any more, and the peer was told so by bye; its own bye is awaited
  };
  Closing closing_ = Closing::no;
  bool bye_heard_ = false;  // nothing of the peer is in flight any more
  bool cut_short_ = false;  // it ended while it was draining
  bool ended_ = false;      // end() was called
  bool torn_down_ = false;

  bool expected_ = false;               // a rank that we know of: nobody accepts it
  std::vector<std::string> addresses_;  // of an expected peer
  std::size_t next_address_ = 0;
  std::vector<std::function<void(const Status&)>> ready_actions_;
  std::unique_ptr<Channel> channel_;
  bool channel_over_ = false;
  bool channel_broken_ = false;  // over by this side's doing: the peer's end is not known by it
  std::unique_ptr<ProcessEnd> death_;
  Liveness liveness_{*this};
  bool outgoing_ = false;   // this side made channel_
  bool greeted_ = false;    // hello went both ways
  bool accepting_ = false;  // this side chooses the message transport
  std::uint64_t remote_session_ = 0;
  OneShotTimer timer_;
  std::vector<std::string> tried_;  // message transports that failed, with reasons

  Connections connections_{*this};
  MessageConnection messages_;
  PeerRoutes routes_{*this, context_};

  PostQueue posts_{*this};
  bool pumping_ = false;
  WorkList works_;
  std::shared_ptr<NotifySlot> notify_slot_;

  Imports imports_{*this};
  Grants grants_{*this};
};

}  // namespace hmc
