// Handshake: from a fresh socket to an authenticated connection, either side, as a state machine that the engine turns.
//
//   client                                        server
//   magic, hello(connect | move)            ->
//                                           <-    magic, hello(accept | refuse)
//   [TCP with a key: TLS 1.3 handshake; everything below is inside it]
//   identity (+ proof descriptor on Unix)   ->
//                                           <-    identity (+ proof descriptor on Unix, + ticket and Unix address on TCP)
//   commit                                  ->
//
// Between identity and commit a TCP client tries the Unix address with the ticket: a second handshake (hello move). If that one
// ends with commit it is the channel and the TCP connection is dropped on both sides; else the client commits on TCP. TCP without a
// key proves nothing: unless both ends are insecure it must move. On Unix the kernel vouches for the user, key or not.
//
// A server that has too many clients in the handshake discards some (ControlPlane). A client whose connection is closed before it
// has the server's identity reconnects, with exponential backoff.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "control/connect_attempts.h"
#include "control/exchange.h"
#include "control/linger.h"
#include "control/process.h"
#include "control/socket_watch.h"

namespace hmc::control {

struct Established {
  std::unique_ptr<Stream> stream;  // may hold frames that came right behind the handshake
  PeerIdentity identity;
  PeerProcess process;  // same host only
  double peer_heartbeat_seconds = 5;
};

class Handshake;

// The side of the plane that handshakes see.
class HandshakeHost {
 public:
  struct Offer {
    std::string address;
    Secret ticket;
  };
  struct Claim {
    ContextId context_id;             // whom the ticket was given to
    std::string remote;               // the TCP address of that connection
    std::weak_ptr<Handshake> parent;  // the TCP handshake, if it still waits
  };
  // A one-time ticket for the Unix socket; nullopt when there is none to move to.
  virtual std::optional<Offer> make_offer(const std::shared_ptr<Handshake>& parent, const ContextId& peer) = 0;
  virtual std::optional<Claim> claim(const Secret& ticket) = 0;  // spends it
  virtual void forget(Handshake& handshake) = 0;                 // drops the plane's reference

 protected:
  ~HandshakeHost() = default;
};

class Handshake final : public FdHandler, public std::enable_shared_from_this<Handshake> {
 public:
  // `remote`: the other end, for people. Called once; may destroy the plane.
  using Done = std::function<void(Result<Established>, const std::string& remote)>;
  enum class Standing : std::uint8_t { client, silent, greeted, authenticated };  // of the last three, which a server's client has

  Handshake(std::shared_ptr<Engine> engine, std::shared_ptr<const LocalSide> local, HandshakeHost& host, Done done);
  ~Handshake() { limit_.stop(); }

  void start_server(AcceptedSocket socket);
  void start_client(std::string_view address, Deadline deadline);
  // Over to the Unix socket of a server met over TCP.
  void start_move(std::string_view address, const MoveTicket& ticket, std::string_view shown_address, Deadline deadline);
  // Drops everything; `reason` goes to Done if nothing has yet.
  void abandon(const Status& reason);
  [[nodiscard]] Standing standing() const noexcept;
  [[nodiscard]] Source source() const noexcept { return remote_.source; }  // of a server's client
  [[nodiscard]] const std::string& remote() const noexcept { return remote_.address; }

  void on_ready(std::uint32_t events) override;

 private:
  enum class State : std::uint8_t { idle, connecting, exchange, moving, linger, over };
  // Who is at the other end, before it has said so.
  struct Remote {
    std::string address;  // for people
    Source source = 0;
    PeerProcess process;
  };

  void connected(Result<UniqueFd> socket);
  void open(UniqueFd socket, bool unix_socket);
  void limit_time(Deadline deadline);
  void receive();
  void advance();
  void serve_identity();
  void choose_connection();
  void moved(Result<Established> outcome);
  void stay(const Status& reason);
  bool retry(const Status& reason);
  void watch();
  [[nodiscard]] const char* waiting_for() const noexcept;
  // ---- the ways it ends ----
  void succeed();
  void refuse(const Status& reason);  // tells the peer
  void end(Result<Established> outcome);
  void tell(Result<Established> outcome);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const LocalSide> local_;
  HandshakeHost* host_;
  Done done_;  // empty once it has been called
  State state_ = State::idle;
  Remote remote_;
  std::optional<ConnectAttempts> attempts_;  // client
  std::optional<MoveTicket> ticket_;         // client, moving
  std::optional<Exchange> exchange_;         // on the current connection
  std::optional<Linger> linger_;
  SocketWatch watch_;  // after what owns the socket: ends before it
  OneShotTimer limit_;
  std::weak_ptr<Handshake> parent_;   // server: the TCP handshake that this one replaces
  std::shared_ptr<Handshake> child_;  // client: the move in progress
};

}  // namespace hmc::control
