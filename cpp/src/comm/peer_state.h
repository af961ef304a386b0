// PeerState: one remote Context as seen from here. Owned by ContextState; handles and operations share it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/onesided/post_queue.h"
#include "comm/wire/envelope.h"
#include "control/channel.h"
#include "hmc/peer.h"
#include "transport/transport.h"

namespace hmc {

class ContextState;
class Liveness;
class PeerRoutes;
struct Route;

namespace messaging {
struct Lane;
}

enum class PeerPhase : std::uint8_t {
  idle,  // known by its addresses (a rank), nothing connected yet; the first operation connects
  connecting,
  ready,
  lost,    // died: failure() is peer_lost
  closed,  // said goodbye, or this side did
};

enum class WhenIdle : std::uint8_t { connect, wait };

// All members with the engine lock held.
class PeerState : public std::enable_shared_from_this<PeerState> {
 public:
  explicit PeerState(bool self) noexcept : self_(self) {}
  virtual ~PeerState() = default;
  [[nodiscard]] virtual ContextState& context() noexcept = 0;
  [[nodiscard]] PeerPhase phase() const noexcept { return phase_; }
  [[nodiscard]] const Status& failure() const noexcept { return failure_; }  // why it is lost or closed
  // `failure`: of lost and closed. Everything else that the phase implies is up to the caller.
  void enter(PeerPhase phase, Status failure = {}) noexcept {
    phase_ = phase;
    failure_ = std::move(failure);
  }
  [[nodiscard]] const PeerIdentity& identity() const noexcept { return identity_; }
  void identify(PeerIdentity identity) noexcept { identity_ = std::move(identity); }
  [[nodiscard]] bool is_self() const noexcept { return self_; }  // this very Context (Members of one process)
  [[nodiscard]] std::string describe() const;                    // "peer host:42 (unix:pid 42)", for people
  // Ready, or closing: operations that have begun still run, and their signals are still sent.
  [[nodiscard]] virtual bool carries() const noexcept = 0;
  // An operation of its messages has ended: a closing peer may be quiet now.
  virtual void operation_over() = 0;

  messaging::Lane* lane = nullptr;  // the messenger's state of this peer

  // "rank 3 of the job", for errors; empty for a peer of no job.
  [[nodiscard]] const std::string& job_ranks() const noexcept { return job_ranks_; }
  void set_job_ranks(std::string ranks) { job_ranks_ = std::move(ranks); }

  // Fences, and sends behind them, that are pending: a send must queue up too.
  [[nodiscard]] bool fenced() const noexcept { return fences_ != 0; }
  void add_fence() noexcept;
  void remove_fence() noexcept;
  [[nodiscard]] virtual PostQueue& posts() noexcept = 0;

  // What an endpoint's completion means to a user: the endpoints of a dead peer are closed by this side, but its operations failed
  // because it died.
  // `breaks`: as the transport's Capabilities say.
  [[nodiscard]] Status meaning_of(Status status, bool breaks) const {
    // Its connection ended, not the peer.
    if (breaks && (status.code() == Code::peer_lost || status.code() == Code::closed) && phase() == PeerPhase::ready)
      return {Code::transport, std::string(status.message()), status.native()};
    if (status.code() != Code::closed || phase() != PeerPhase::lost) return status;
    return failure().with_context(status.message());
  }

  // Runs `action` once: at once when ready, else when the peer becomes ready (starting to connect when idle) or with the failure.
  // WhenIdle::wait: an idle peer stays idle until something else connects. Without its `owner`, of a wait that may end first, the
  // action does not run.
  using ActionOwner = std::optional<std::weak_ptr<const void>>;
  virtual void when_ready(std::function<void(const Status&)> action, WhenIdle idle = WhenIdle::connect, ActionOwner owner = {}) = 0;
  [[nodiscard]] virtual Liveness& liveness() noexcept = 0;
  // Ready only. Signals of messages and notifications: accepted means delivered once and in order, unless the peer ends. Errors as
  // Endpoint::signal; would_block also while another connection takes over from one that failed.
  virtual Status signal(ByteSpan head, ByteSpan body) = 0;
  // Ready only. Of the transport that carries them.
  [[nodiscard]] virtual const Capabilities& message_capabilities() const noexcept = 0;
  [[nodiscard]] virtual PeerRoutes& routes() noexcept = 0;
  // The endpoint whose transport has `name`, for importing regions a peer exported through that transport; null if none.
  virtual Endpoint* endpoint(std::string_view transport_name) noexcept = 0;
  // Opaque control message (100..255). Errors as Channel::send.
  virtual Status send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {}) = 0;
  // Ends the peer now, as lost: its pending operations complete with `reason`.
  virtual void fail(const Status& reason) = 0;

 private:
  const bool self_;
  PeerPhase phase_ = PeerPhase::idle;
  Status failure_;
  PeerIdentity identity_;
  std::string job_ranks_;
  std::uint32_t fences_ = 0;
};

}  // namespace hmc
