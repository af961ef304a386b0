// ContextImpl: the owner of everything below one Context. Engine lock held unless said otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/pollable.h"
#include "comm/buffers/exports.h"
#include "comm/buffers/regions.h"
#include "comm/context_state.h"
#include "comm/counters.h"
#include "comm/onesided/notifier.h"
#include "comm/onesided/transfers.h"
#include "comm/peer_impl.h"
#include "comm/routing/local_transports.h"
#include "comm/session/context_closing.h"
#include "comm/session/deferred_tasks.h"
#include "comm/session/group_events.h"
#include "comm/session/joins.h"
#include "comm/session/peer_table.h"

namespace hmc {

// ContextId as text, 32 hex digits.
std::string context_id_text(const ContextId& id);

class ContextImpl final : public ContextState, public Pollable {
 public:
  // Lock not held.
  static Result<std::shared_ptr<ContextImpl>> create(const ContextOptions& options);
  ContextImpl(ContextOptions options, std::shared_ptr<Engine> engine);
  ~ContextImpl() override;

  // ---- ContextState ----
  [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept override { return engine_; }
  [[nodiscard]] const ContextId& id() const noexcept override { return id_; }
  [[nodiscard]] const ContextOptions& options() const noexcept override { return options_; }
  [[nodiscard]] Status usable() const override;
  [[nodiscard]] Messenger& messenger() noexcept override { return *messenger_; }
  [[nodiscard]] Transfers& transfers() noexcept override { return transfers_; }
  [[nodiscard]] Notifier& notifier() noexcept override { return notifier_; }
  [[nodiscard]] const std::shared_ptr<PeerState>& self() noexcept override { return peers_.self(); }
  std::shared_ptr<PeerState> expect_peer(const ContextId& id, std::vector<std::string> addresses, std::string name) override {
    return peers_.expect(id, std::move(addresses), std::move(name));
  }
  [[nodiscard]] RankScopes& scopes() noexcept override { return peers_.scopes(); }
  [[nodiscard]] GroupEvents& group_events() noexcept override { return group_events_; }
  [[nodiscard]] Counters& counters() noexcept override { return counters_; }

  // ---- public handles' side, lock not held ----
  [[nodiscard]] ContextClosing& closing() noexcept { return closing_; }
  // Runs `task` soon under the engine lock; from destructors: any thread, lock held or not. Once the Context is shut down the task
  // is destroyed instead.
  void toss(std::function<void()> task);

  // ---- for PeerImpl and its kind ----
  [[nodiscard]] Joins& joins() noexcept { return joins_; }
  [[nodiscard]] Exports& exports() noexcept { return exports_; }
  [[nodiscard]] Regions& regions() noexcept { return regions_; }
  [[nodiscard]] PeerTable& peers() noexcept { return peers_; }
  [[nodiscard]] LocalTransports& transports() noexcept { return transports_; }
  [[nodiscard]] DeferredTasks& tasks() noexcept { return tasks_; }

 private:
  bool poll() override;
  bool arm() override;
  [[nodiscard]] bool busy() const override;

  Status start(const TransportFilter& filter);  // lock not held

  const ContextOptions options_;
  const ContextId id_;
  const std::shared_ptr<Engine> engine_;
  ContextClosing closing_{*this};

  Joins joins_{*this};
  LocalTransports transports_{*this};
  const std::unique_ptr<Messenger> messenger_ = Messenger::create(*this);
  Notifier notifier_{*this};
  PeerTable peers_{*this};

  Exports exports_{*this};
  Regions regions_{*this};

  GroupEvents group_events_;
  Counters counters_;

  DeferredTasks tasks_;
  Transfers transfers_{*this};
};

// The ContextState behind a handle is always a ContextImpl.
inline ContextImpl& impl_of(ContextState& context) noexcept { return static_cast<ContextImpl&>(context); }

}  // namespace hmc
