// Channel: authenticated, ordered, bounded messages between two Contexts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/blob.h"
#include "base/fd.h"
#include "hmc/deadline.h"
#include "hmc/status.h"
#include "progress/engine.h"
#include "progress/listener.h"

namespace hmc {

// 1..99 control itself, 100..199 comm, 200..255 collective. Control never looks inside the others' payload.
using MessageType = std::uint8_t;
inline constexpr std::size_t max_control_payload = 1 << 20;   // bytes of one message
inline constexpr std::size_t max_control_fds = max_blob_fds;  // descriptors of one message

using ContextId = std::array<std::uint64_t, 2>;  // random, ordered lexicographically

// Who is at the other end, established by the handshake.
struct PeerIdentity {
  ContextId context_id{};
  std::string name;
  std::string address;  // where we are connected to, for people
  std::uint64_t epoch = 0;
  bool same_host = false;  // descriptors can be passed; then pid and pidfd are the kernel's word
  bool encrypted = false;
  int pid = 0;  // same_host only, else 0
};

class ChannelSink {
 public:
  // Engine lock held. `payload` is valid during the call. Also after close(), until on_closed().
  virtual void on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) = 0;
  // Last call, once. peer_lost (death, reset, heartbeat), closed (either side said goodbye), protocol.
  virtual void on_closed(const Status& reason) = 0;

 protected:
  ~ChannelSink() = default;
};

// All calls with the engine lock held. Destruction closes without a goodbye.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void set_sink(ChannelSink& sink) = 0;  // messages that came earlier are delivered from the next poll
  // Queues a message (at most 64 MiB queued, else would_block); ok also where the connection has just failed, which on_closed()
  // will tell. Errors: closed and peer_lost once on_closed() was told, unsupported (descriptors to another host), invalid_argument
  // (type below 100, payload or descriptors beyond the limits).
  virtual Status send(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {}) = 0;
  [[nodiscard]] virtual const PeerIdentity& identity() const noexcept = 0;
  // Says goodbye once all that is queued has been sent, then on_closed(closed) follows. What is queued is dropped where the peer
  // reads less than 1 MiB of it in 2 s.
  virtual void close() = 0;
  // Ends this side after what is queued, with a goodbye or (as a death would look) without. on_closed() follows when the peer has
  // ended its side or its process is dead, however long that takes. Peers of the same host only.
  virtual void await_end(bool goodbye) = 0;
};

struct ControlOptions {
  ContextId context_id{};
  std::string name;
  std::string key;  // empty: none
  bool insecure = false;
  double heartbeat_seconds = 5;
  bool same_host_upgrade = true;  // false: a TCP connection stays on TCP even between processes of one host (tests)
  std::function<void(const Status& reason, std::string_view remote)> on_refused;  // a client failed the handshake; engine lock held
};

// Accepts and makes Channels for one Context. A connection made over TCP between processes of one host moves to the Unix socket
// (proved by passing a descriptor, never by host names), so death is seen at once and descriptors can be passed.
// All calls with the engine lock held.
class ControlPlane {
 public:
  using Ready = std::function<void(Result<std::unique_ptr<Channel>>)>;  // engine lock held, once
  static Result<std::unique_ptr<ControlPlane>> create(std::shared_ptr<Engine> engine, Listener& listener, ControlOptions options);
  virtual ~ControlPlane() = default;
  virtual void on_accept(std::function<void(std::unique_ptr<Channel>)> handler) = 0;
  // Errors through `ready`: authentication, timeout, peer_lost (refused), protocol. Returns what gives the attempt up, engine lock
  // held: `ready` then gets `closed`, unless it has been called.
  virtual std::function<void()> connect(std::string_view address, Deadline deadline, Ready ready) = 0;
  // Refuses (with the fix in the message) addresses beyond the host without key or insecure; then Listener::listen.
  virtual Result<std::string> listen(std::string_view address) = 0;
};

// A fresh job key: 256 random bits as text ("hmc1-..."), what `hmc keygen` prints.
std::string generate_key();

}  // namespace hmc
