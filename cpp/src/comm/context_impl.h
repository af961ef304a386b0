// ContextImpl: the owner of everything below one Context. Engine lock held unless said otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
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
#include "comm/session/deferred_tasks.h"
#include "comm/session/group_events.h"
#include "comm/session/joins.h"
#include "comm/session/peer_table.h"

namespace hmc {

class WaitWork;

// ContextId as text, 32 hex digits.
std::string context_id_text(const ContextId& id);

class ContextImpl final : public ContextState, private Pollable {
 public:
  // Lock not held.
  static Result<std::shared_ptr<ContextImpl>> create(const ContextOptions& options);
  explicit ContextImpl(ContextOptions options);
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
  // Timeout: a peer may still access memory of this process, and the Context lives on (not with `force`); or something was lost.
  Status close(Deadline deadline, bool force = false);
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_shut_down() const noexcept { return tasks_.stopped(); }
  // Runs `task` soon under the engine lock; from destructors: any thread, lock held or not. Once the Context is shut down the task
  // is destroyed instead.
  void toss(std::function<void()> task);

  // ---- for PeerImpl and its kind ----
  [[nodiscard]] Joins& joins() noexcept { return joins_; }
  [[nodiscard]] Exports& exports() noexcept { return exports_; }
  [[nodiscard]] Regions& regions() noexcept { return regions_; }
  [[nodiscard]] PeerTable& peers() noexcept { return peers_; }
  [[nodiscard]] LocalTransports& transports() noexcept { return transports_; }
  [[nodiscard]] std::list<WaitWork*>& waits() noexcept { return waits_; }

 private:
  bool poll() override;
  bool arm() override;
  [[nodiscard]] bool busy() const override;

  Status start();  // lock not held
  void shut_down();
  void end_waits(const Status& reason);

  ContextOptions options_;
  ContextId id_{};
  const std::uint32_t fork_epoch_;
  std::shared_ptr<Engine> engine_;
  std::atomic<bool> closed_{false};
  bool polled_ = false;       // added to the engine
  std::mutex closing_mutex_;  // one thread closes, others wait for it

  Joins joins_{*this};
  LocalTransports transports_{*this};
  std::unique_ptr<Messenger> messenger_;
  Notifier notifier_{*this};
  PeerTable peers_{*this};
  std::list<WaitWork*> waits_;  // every unfinished one

  Exports exports_{*this};
  Regions regions_{*this};

  GroupEvents group_events_;
  Counters counters_;

  DeferredTasks tasks_;
  Transfers transfers_{*this};
};

// Lock guard for public calls: refuses closed and forked Contexts first.
inline ContextImpl& impl_of(ContextState& context) noexcept { return static_cast<ContextImpl&>(context); }

}  // namespace hmc
