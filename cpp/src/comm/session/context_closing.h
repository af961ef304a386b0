// ContextClosing: the end of a Context: first of its waits and its peers, in order, then of all that it owns. Owned by ContextImpl.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "comm/peer_state.h"

#include "hmc/deadline.h"
#include "hmc/status.h"

namespace hmc {

class ContextImpl;
class WaitWork;

class ContextClosing {
 public:
  explicit ContextClosing(ContextImpl& context) noexcept : context_(context) {}

  // Lock not held. Threads that close at once wait each for its own deadline, callbacks included. Timeout: a peer may still access
  // memory of this process, and the Context lives on (not with `force`); or something was lost. Cancelled: the caller was
  // interrupted (not with `force`).
  Status close(Deadline deadline, bool force = false);

  // ---- any thread, lock held or not ----
  [[nodiscard]] bool begun() const noexcept { return begun_.load(std::memory_order_acquire); }
  [[nodiscard]] bool over() const noexcept;
  [[nodiscard]] static Status reason();  // for what ends with the Context

  // Every unfinished wait: the Context ends it before its own end. Engine lock held.
  [[nodiscard]] std::list<WaitWork*>& waits() noexcept { return waits_; }
  // Records what was lost with a peer that this side closed or was not connected to (empty: nothing), for close() to report.
  // Engine lock held.
  void add_lost(const PeerState& peer, const std::string& what);
  // The application knows that the peer is gone, and goes on without it: close() reports nothing that was or will be lost with it.
  // Engine lock held.
  void expect_lost(const PeerState& peer);

 private:
  enum class Stage : std::uint8_t {
    open,
    ending,  // one thread frees everything
    down,    // nothing of a peer is left, and its memory is not accessed any more
  };
  void begin();
  Status shut_down(Deadline deadline, const std::string& lost);
  void tear_down();

  ContextImpl& context_;
  Stage stage_ = Stage::open;  // guarded by the engine lock
  std::atomic<bool> begun_{false};
  std::list<WaitWork*> waits_;
  struct Loss {
    ContextId peer;
    std::string what;
  };
  std::vector<Loss> lost_;  // the first of them
  std::uint64_t more_lost_ = 0;
  std::set<ContextId> expected_;  // peers
  Status outcome_;                // of the thread that frees everything, for the others that close
};

}  // namespace hmc
