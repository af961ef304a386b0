// PeerImpl: one remote Context, from its first sight to its end: the owner of the parts that handle its session, connections,
// routes, posts and buffers. Everything with the engine lock held unless said otherwise.
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
#include "comm/session/peer_input.h"

namespace hmc {

class ContextImpl;

class PeerImpl final : public PeerState {
 public:
  PeerImpl(const std::shared_ptr<ContextImpl>& context, std::uint64_t session, bool self);
  ~PeerImpl() override;

  // ---- PeerState ----
  [[nodiscard]] ContextState& context() noexcept override;
  [[nodiscard]] bool carries() const noexcept override { return phase() == PeerPhase::ready || closing_.in_progress(); }
  void operation_over() override {
    if (closing_.in_progress()) closing_.advance_soon();
  }
  [[nodiscard]] PostQueue& posts() noexcept override { return posts_; }
  void when_ready(std::function<void(const Status&)> action, WhenIdle idle = WhenIdle::connect, ActionOwner owner = {}) override;
  [[nodiscard]] Liveness& liveness() noexcept override { return liveness_; }
  Status signal(ByteSpan head, ByteSpan body) override { return messages_.signal(head, body); }
  [[nodiscard]] const Capabilities& message_capabilities() const noexcept override { return messages_.capabilities(); }
  [[nodiscard]] PeerRoutes& routes() noexcept override { return routes_; }
  Endpoint* endpoint(std::string_view transport_name) noexcept override { return connections_.endpoint(transport_name); }
  Status send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {}) override;
  void fail(const Status& reason) override { closing_.end(reason, PeerPhase::lost); }

  void broken(std::string_view what);  // the peer broke the protocol: fails
  // True: an operation that must stay behind what is pending may be posted now.
  [[nodiscard]] bool may_post() const noexcept { return posts_.passable() && phase() == PeerPhase::ready; }

  // ---- its parts ----
  [[nodiscard]] ContextImpl& impl() noexcept { return context_; }                                         // any thread
  [[nodiscard]] const std::shared_ptr<NotifySlot>& notify_slot() const noexcept { return notify_slot_; }  // any thread
  [[nodiscard]] PeerHandshake& handshake() noexcept { return handshake_; }
  [[nodiscard]] Closing& closing() noexcept { return closing_; }
  [[nodiscard]] PeerInput& input() noexcept { return input_; }
  [[nodiscard]] ControlLink& link() noexcept { return link_; }
  [[nodiscard]] Connections& connections() noexcept { return connections_; }
  [[nodiscard]] MessageConnection& messages() noexcept { return messages_; }
  [[nodiscard]] WorkList& works() noexcept { return works_; }
  [[nodiscard]] Imports& imports() noexcept { return imports_; }
  [[nodiscard]] Grants& grants() noexcept { return grants_; }

 private:
  const std::shared_ptr<ContextImpl>
      owner_;  // a cycle until the Context is closed, which forgets its peers; null for self, which it keeps
  ContextImpl& context_;
  PeerHandshake handshake_;
  Closing closing_;
  PeerInput input_{*this};
  ControlLink link_;
  Liveness liveness_{*this};

  Connections connections_{*this};
  MessageConnection messages_;
  PeerRoutes routes_{*this, context_};

  PostQueue posts_{*this};
  WorkList works_;
  std::shared_ptr<NotifySlot> notify_slot_;

  Imports imports_{*this};
  Grants grants_{*this};
};

}  // namespace hmc
