// PeerImpl: one remote Context, from its first sight to its end: the owner of its handshake, connections, routes, posts and
// buffers. Everything with the engine lock held unless said otherwise.
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
#include "comm/session/closing.h"
#include "comm/session/control_link.h"
#include "comm/session/liveness.h"
#include "comm/session/peer_handshake.h"
#include "comm/wire/codec.h"

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
  [[nodiscard]] bool carries() const noexcept override { return phase_ == PeerPhase::ready || closing_.in_progress(); }
  void operation_over() override {
    if (closing_.in_progress()) closing_.advance_soon();
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

  // ---- joining ----
  [[nodiscard]] PeerHandshake& handshake() noexcept { return handshake_; }
  // The peer's identity and addresses before it is connected: a rank, or this very Context.
  void expect(const ContextId& id, std::vector<std::string> addresses, std::string name);
  void become_self();
  void enter(PeerPhase phase) noexcept { phase_ = phase; }  // connecting or ready
  [[nodiscard]] ControlLink& link() noexcept { return link_; }
  void adopt(std::unique_ptr<Channel> channel);  // connecting by it

  // ---- its end ----
  [[nodiscard]] Closing& closing() noexcept { return closing_; }
  // Whether the process of the peer may still read or write memory of this one by itself.
  [[nodiscard]] bool holds() const;
  // While it closes, or after: what has not ended yet, as text for people; empty if nothing.
  [[nodiscard]] std::string unfinished() const;
  // Closing begins: nothing new is posted or asked for, what was posted goes on.
  void stop_posting(const Status& reason);
  // Ends at once: pending operations complete with `reason`, the rest is taken down outside the current call chain.
  void end(const Status& reason, PeerPhase phase);
  void let_go();     // the peer's process accesses nothing of this one's memory any more
  void tear_down();  // end()'s second half, outside the current call chain
  // The Context is going away: nothing is awaited. Memory that the peer may still write goes to `kept`.
  void tear_down_now(std::vector<std::shared_ptr<const void>>& kept);
  // Nothing of it is left but the object: everything freed, and the peer's process has let go of this one's memory.
  [[nodiscard]] bool gone() const noexcept { return closing_.torn_down() && link_.gone(); }

  // ---- connections ----
  [[nodiscard]] Connections& connections() noexcept { return connections_; }
  [[nodiscard]] MessageConnection& messages() noexcept { return messages_; }
  void on_signal(EndpointSlot& slot, ByteSpan signal);

  // ---- posting ----
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

  const std::shared_ptr<ContextImpl>
      owner_;  // a cycle until the Context is closed, which forgets its peers; null for self, which it keeps
  ContextImpl& context_;
  const std::uint64_t session_;
  const bool self_;
  PeerPhase phase_ = PeerPhase::idle;
  Status failure_;
  PeerIdentity identity_;
  PeerHandshake handshake_;
  Closing closing_;

  ControlLink link_;
  Liveness liveness_{*this};

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
