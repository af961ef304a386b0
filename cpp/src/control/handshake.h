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

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "control/process.h"
#include "control/stream.h"
#include "progress/connecting.h"

namespace hmc::control {

// What this Context is to its peers; shared by everything that shakes hands for it.
struct LocalSide {
  ControlOptions options;  // the key text wiped
  std::optional<PresharedKey> key;
  mutable std::shared_ptr<TlsContext> tls;  // made at first use: a Context that never meets TCP does not pay for it
  std::uint64_t epoch = 0;
};

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
  using Done = std::function<void(Result<Established>)>;  // once; may destroy the plane

  Handshake(std::shared_ptr<Engine> engine, std::shared_ptr<const LocalSide> local, HandshakeHost& host, Done done);
  ~Handshake();

  void set_done(Done done) { done_ = std::move(done); }
  void start_server(AcceptedSocket socket);
  void start_client(std::string_view address, Deadline deadline);
  // Over to the Unix socket of a server met over TCP.
  void start_move(const HandshakeHost::Offer& offer, const ContextId& expected, std::string_view shown_address, Deadline deadline);
  // Drops everything; `reason` goes to Done if nothing has yet.
  void abandon(const Status& reason);
  // The channel moved: this TCP connection has done its duty.
  void superseded();
  [[nodiscard]] bool authenticated() const noexcept { return authenticated_; }
  [[nodiscard]] bool server() const noexcept { return server_; }
  [[nodiscard]] bool greeted() const noexcept { return accepted_; }  // the hellos are done
  [[nodiscard]] Source source() const noexcept { return source_; }   // of a server's client
  [[nodiscard]] const std::string& remote() const noexcept { return remote_; }

  void on_ready(std::uint32_t events) override;

 private:
  enum class State : std::uint8_t { idle, connecting, hello, tls, identity, moving, decision, linger, over };

  // ---- mechanics (handshake.cc) ----
  void open(UniqueFd socket);
  void limit_time(Deadline deadline);
  void connected();
  void receive();
  void advance();
  void discard_input();
  bool retry(const Status& reason);
  void watch();
  void unwatch();
  // Ends with an error. refuse: tells the peer first and stays until it has had time to read it. False, for use in return.
  bool refuse(const Status& reason);
  bool fail(const Status& reason);
  void linger();
  void tell(Result<Established> outcome);
  void succeed();
  void release();
  [[nodiscard]] const char* waiting_for() const noexcept;

  // ---- protocol (handshake_steps.cc) ----
  // Each handles what has arrived; true if there may be more to handle.
  bool take_magic();
  bool take_hello();
  bool hello_from_client(const Hello& hello);
  bool hello_from_server(const Hello& hello);
  bool after_hello();
  bool take_frame();
  bool identity_from_peer(const Stream::Frame& frame);
  bool serve_identity();
  bool choose_connection();
  void moved(Result<Established> outcome);
  bool commit();
  void send_hello(HelloKind kind, std::uint8_t detail, std::string_view text);
  Status send_identity(const std::optional<Secret>& ticket, std::string_view move_address);
  [[nodiscard]] bool secured() const noexcept { return local_->key && !stream_->passes_fds(); }
  [[nodiscard]] std::uint8_t own_flags() const noexcept;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const LocalSide> local_;
  HandshakeHost* host_;
  Done done_;
  State state_ = State::idle;
  bool server_ = false;
  bool authenticated_ = false;
  bool must_move_ = false;  // TCP without a key, and not both ends insecure
  bool magic_seen_ = false;
  bool accepted_ = false;                 // hellos are done: refusals go as frames from here on
  bool told_ = false;                     // Done has been called
  std::optional<Connecting> connecting_;  // client
  bool unix_ = false;
  std::unique_ptr<Stream> stream_;
  int watched_fd_ = -1;
  std::uint32_t watched_ = 0;
  std::optional<Engine::TimerId> timer_;
  Deadline deadline_ = Deadline::never();
  Source source_ = 0;
  bool heard_ = false;                            // client: a server has said hello, if only before a retry
  unsigned retries_ = 0;                          // client
  Deadline client_deadline_ = Deadline::never();  // for all of them
  std::size_t discarded_ = 0;
  std::string target_;  // client: what we connect to
  std::string remote_;  // for people
  PeerProcess process_;
  HelloKind kind_ = HelloKind::connect;
  Identity peer_;
  std::optional<Secret> presented_;    // client, moving: the ticket that we show
  std::optional<ContextId> expected_;  // the context that the ticket binds us to
  std::weak_ptr<Handshake> parent_;    // server: the TCP handshake that this one replaces
  std::shared_ptr<Handshake> child_;   // client: the move under way
};

}  // namespace hmc::control
