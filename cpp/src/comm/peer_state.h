// PeerState: one remote Context as seen from here. Owned by ContextState; handles and operations share it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/envelope.h"
#include "comm/transport_set.h"
#include "control/channel.h"
#include "hmc/path.h"
#include "hmc/peer.h"
#include "transport/transport.h"

namespace hmc {

class ContextState;

namespace messaging {
struct Lane;
}

// How operations between one local and one remote device travel. Chosen once per pair, kept until it fails; memory that it does not
// reach has another.
struct Route {
  Transport* transport = nullptr;
  TransportSet bit = 0;
  Endpoint* endpoint = nullptr;
  Path path;  // counters are updated as operations are posted
};

enum class PeerPhase : std::uint8_t {
  idle,  // known by its addresses (a rank), nothing connected yet; the first operation connects
  connecting,
  ready,
  lost,    // died: failure() is peer_lost
  closed,  // said goodbye, or this side did
};

// All members with the engine lock held.
class PeerState : public std::enable_shared_from_this<PeerState> {
 public:
  virtual ~PeerState() = default;
  [[nodiscard]] virtual ContextState& context() noexcept = 0;
  [[nodiscard]] virtual PeerPhase phase() const noexcept = 0;
  [[nodiscard]] virtual const Status& failure() const noexcept = 0;  // why it is lost or closed
  [[nodiscard]] virtual const PeerIdentity& identity() const noexcept = 0;
  [[nodiscard]] virtual bool is_self() const noexcept = 0;  // this very Context (Members of one process)

  messaging::Lane* lane = nullptr;  // the messenger's state of this peer

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
  virtual void when_ready(std::function<void(const Status&)> action) = 0;
  // A vendor's call on memory of a process that is dying fails before the death shows, and is to be reported as the peer's loss:
  // asks the peer, and runs `action` once it has answered or been silent for 2 s; where it ends instead, never. False: it cannot be
  // asked.
  virtual bool when_alive(std::function<void()> action) = 0;
  // Ready only. Signals of messages and notifications: accepted means delivered once and in order, unless the peer ends. Errors as
  // Endpoint::signal; would_block also while another connection takes over from one that failed.
  virtual Status signal(ByteSpan head, ByteSpan body) = 0;
  // Ready only. Of the transport that carries them.
  [[nodiscard]] virtual const Capabilities& message_capabilities() const noexcept = 0;
  // Ready only. The best without `refused`. Errors: unsupported with every candidate's reason; would_block: it is being made.
  virtual Result<Route*> route(const Device& local, const Device& remote, TransportSet refused) = 0;
  // Ready only. Transports between the two devices that take memory of buffers alone (Reach::transient): a message leaves them out.
  virtual TransportSet buffers_only(const Device& local, const Device& remote) = 0;
  // For a message, the one by the transport of that name, which the peer has chosen.
  virtual Result<Route*> route_by(const Device& local, const Device& remote, std::string_view transport_name) = 0;
  // What takes over for memory that `failed` does not reach; `refused` names it and those that failed before. Tells of it once.
  // Errors: as route(), with `reason` in front.
  virtual Result<Route*> next_route(const Route& failed, TransportSet refused, const Status& reason) = 0;
  // The endpoint whose transport has `name`, for importing regions a peer exported through that transport; null if none.
  virtual Endpoint* endpoint(std::string_view transport_name) noexcept = 0;
  // Adds a message that moved along `route` to its counters.
  virtual void count_message(Route& route, bool sent, std::size_t bytes) = 0;
  // Opaque control message (100..255). Errors as Channel::send.
  virtual Status send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {}) = 0;
  // Ends the peer now, as if it had died, because it broke the protocol.
  virtual void fail(const Status& reason) = 0;
};

}  // namespace hmc
