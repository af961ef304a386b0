// Exchange: what both ends say on one connection of a handshake (the order is in handshake.h), and what each refuses. Either side.
// Reads and writes a stream; knows no engine, no time and no other connection. Engine lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "control/channel.h"
#include "control/records.h"
#include "control/stream.h"
#include "control/tls.h"

namespace hmc::control {

// What this Context is to its peers; shared by everything that shakes hands for it.
struct LocalSide {
  ControlOptions options;  // the key text wiped
  std::optional<PresharedKey> key;
  mutable std::shared_ptr<TlsContext> tls;  // made at first use: a Context that never meets TCP does not pay for it
  std::uint64_t epoch = 0;
};

// What a client that moves to the Unix socket presents there, and whom it must meet.
struct MoveTicket {
  Secret secret;
  ContextId server;
};

class Exchange {
 public:
  enum class Step : std::uint8_t {
    wait,        // more input is needed
    identified,  // peer() is known: the server answers, the client chooses a connection
    committed,   // server: the client has chosen this connection
    refuse,      // call refuse() and keep the connection until the peer can have read it
    fail,        // close
  };
  struct Turn {
    Step step = Step::wait;
    Status reason{};  // refuse, fail
  };

  // `ticket`: of a client that moves.
  Exchange(const LocalSide& local, std::unique_ptr<Stream> stream, bool server, const std::optional<MoveTicket>& ticket);

  void vouched() noexcept { authenticated_ = true; }  // the kernel has named the user at the other end
  void greet();                                       // client: first
  // Handles what the stream has received. `remote`: the other end, for errors.
  Turn advance(const std::string& remote);
  // Server, identified: its own identity, with a ticket for `move_address` if there is one.
  Status answer(const std::optional<Secret>& ticket, std::string_view move_address);
  // Client, identified: chooses this connection. False: it broke; what the server said last is still to be read.
  bool commit();
  void refuse(const Status& reason);

  [[nodiscard]] Stream& stream() noexcept { return *stream_; }
  [[nodiscard]] std::unique_ptr<Stream> take_stream() noexcept { return std::move(stream_); }
  [[nodiscard]] bool greeted() const noexcept { return phase_ != Phase::hello; }
  [[nodiscard]] bool authenticated() const noexcept { return authenticated_; }
  [[nodiscard]] bool must_move() const noexcept { return must_move_; }  // TCP without a key, and not both ends insecure
  [[nodiscard]] const Identity& peer() const noexcept { return peer_; }
  [[nodiscard]] const char* waiting_for() const noexcept;

 private:
  enum class Phase : std::uint8_t { hello, tls, identity, decision };
  using Next = std::optional<Turn>;  // nullopt: there may be more to handle

  Next take_magic(const std::string& remote);
  Next take_hello(const std::string& remote);
  Next hello_from_client(const Hello& hello);
  Next hello_from_server(const Hello& hello, const std::string& remote);
  Next start_tls();
  Next start_identities(const std::string& remote);
  Next take_frame(const std::string& remote);
  Next identity_from_peer(const Stream::Frame& frame);
  void send_hello(HelloKind kind, std::uint8_t detail, std::string_view text);

  const LocalSide& local_;
  std::unique_ptr<Stream> stream_;
  const bool server_;
  const std::optional<MoveTicket> ticket_;
  Phase phase_ = Phase::hello;
  HelloKind kind_;  // of the client's hello
  bool magic_seen_;
  bool must_move_ = false;
  bool authenticated_ = false;
  Identity peer_;
};

}  // namespace hmc::control
