// Handshake: its connections, time limits and ends. What is said on a connection is in exchange.cc.
#include "control/handshake.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <chrono>

#include "base/log.h"

namespace hmc::control {
namespace {

constexpr auto handshake_limit = std::chrono::seconds(10);
// For the Unix socket to answer, where the TCP connection can stay instead.
constexpr auto move_limit = std::chrono::seconds(5);
constexpr std::size_t max_unauthenticated_bytes = 64 * 1024;

Deadline earlier(Deadline a, Deadline b) { return a.when() < b.when() ? a : b; }

}  // namespace

Handshake::Handshake(std::shared_ptr<Engine> engine, std::shared_ptr<const LocalSide> local, HandshakeHost& host, Done done)
    : engine_(std::move(engine)),
      local_(std::move(local)),
      host_(&host),
      done_(std::move(done)),
      watch_(*engine_),
      limit_(*engine_) {}

Handshake::Standing Handshake::standing() const noexcept {
  if (attempts_) return Standing::client;
  if (!exchange_) return Standing::silent;
  if (exchange_->authenticated()) return Standing::authenticated;
  return exchange_->greeted() ? Standing::greeted : Standing::silent;
}

// ---- connections ----

void Handshake::start_server(AcceptedSocket socket) {
  remote_.address = std::move(socket.remote);
  remote_.source = socket.source;
  limit_time(Deadline::after(handshake_limit));
  open(std::move(socket.fd), socket.unix_socket);
  if (state_ == State::exchange) receive();  // most have sent it by now
}

void Handshake::start_client(std::string_view address, Deadline deadline) {
  if (remote_.address.empty()) remote_.address = std::string(address);
  state_ = State::connecting;
  limit_time(deadline);
  attempts_.emplace(*engine_, address, deadline, [this](Result<UniqueFd> socket) { connected(std::move(socket)); });
  attempts_->start();
}

void Handshake::start_move(std::string_view address, const MoveTicket& ticket, std::string_view shown_address, Deadline deadline) {
  ticket_ = ticket;
  remote_.address = std::string(shown_address);
  start_client(address, deadline);
}

void Handshake::connected(Result<UniqueFd> socket) {
  const auto self = shared_from_this();
  if (!socket.ok()) return end(socket.status());
  // A stopped process of this host is waited for: its death ends the connection.
  if (!attempts_->unix_socket()) limit_time(earlier(limit_.due(), Deadline::after(handshake_limit)));
  open(std::move(socket).value(), attempts_->unix_socket());
}

void Handshake::open(UniqueFd socket, bool unix_socket) {
  const int fd = socket.get();
  const bool server = !attempts_;
  exchange_.emplace(*local_, std::make_unique<Stream>(std::move(socket), unix_socket), server, ticket_);
  state_ = State::exchange;
  if (!unix_socket) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  } else {
    auto process = peer_process(fd);
    if (!process.ok()) return server ? refuse(process.status()) : end(process.status().with_context(remote_.address));
    remote_.process = std::move(process).value();
    exchange_->vouched();
    if (server) remote_.address += " (pid " + std::to_string(remote_.process.pid) + ")";
  }
  if (!server) exchange_->greet();
  watch();
}

void Handshake::limit_time(Deadline deadline) {
  limit_.start(deadline, [this] {
    end(Status(Code::timeout, "the handshake with " + remote_.address + " did not end in time: " + waiting_for()));
  });
}

void Handshake::watch() {
  Stream& stream = exchange_->stream();
  std::uint32_t events = EPOLLIN;
  if (stream.status().ok() && stream.queued() > 0) events |= EPOLLOUT;
  if (const Status status = watch_.start(stream.fd(), events, *this); !status.ok()) {
    const auto self = shared_from_this();
    engine_->defer([self, status] { self->end(status); });
  }
}

void Handshake::on_ready(std::uint32_t events) {
  const auto self = shared_from_this();
  // A failed write is no news by itself: the reason may still be waiting to be read.
  if ((events & EPOLLOUT) != 0) static_cast<void>(exchange_->stream().flush());
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
    receive();
  } else {
    watch();
  }
}

void Handshake::receive() {
  switch (exchange_->stream().read()) {
    case Stream::Input::blocked:
      return watch();
    case Stream::Input::data:
      if (!exchange_->authenticated() && exchange_->stream().received() > max_unauthenticated_bytes)
        return refuse(Status(Code::protocol, "too many bytes before authentication"));
      return advance();
    case Stream::Input::ended:
      advance();
      if (state_ == State::exchange) {
        const Status reason(Code::peer_lost, remote_.address + " closed the connection during the handshake: " + waiting_for());
        if (!retry(reason)) end(reason);
      }
      return;
    case Stream::Input::failed: {
      const Status reason = exchange_->stream().status();
      if (reason.code() != Code::peer_lost) return refuse(reason);  // by a TLS alert, which is sent already
      const Status lost = reason.with_context(remote_.address);
      if (!retry(lost)) end(lost);
      return;
    }
  }
}

// A busy server discards clients without a word. False: not (any more).
bool Handshake::retry(const Status& reason) {
  if (!attempts_ || !attempts_->retry(exchange_->greeted())) return false;
  if (log_enabled(LogLevel::debug)) log(LogLevel::debug, reason.str() + "; connecting again");
  watch_.stop();
  exchange_.reset();
  state_ = State::connecting;
  limit_time(attempts_->deadline());
  return true;
}

// ---- the choice of the connection ----

void Handshake::advance() {
  while (state_ == State::exchange) {
    const Exchange::Turn turn = exchange_->advance(remote_.address);
    switch (turn.step) {
      case Exchange::Step::wait:
        return watch();
      case Exchange::Step::identified:
        if (attempts_) {
          choose_connection();
        } else {
          serve_identity();
        }
        break;
      case Exchange::Step::committed:
        return succeed();
      case Exchange::Step::refuse:
        return refuse(turn.reason);
      case Exchange::Step::fail:
        return end(turn.reason);
    }
  }
}

void Handshake::serve_identity() {
  const Identity& client = exchange_->peer();
  std::optional<HandshakeHost::Offer> offer;
  if (client.ticket) {
    auto claim = host_->claim(*client.ticket);
    if (!claim || claim->context_id != client.context_id) {
      return refuse(Status(Code::authentication, "the ticket is unknown, spent or stale"));
    }
    parent_ = claim->parent;
    remote_.address = claim->remote;
  } else if (!exchange_->stream().passes_fds()) {
    offer = host_->make_offer(shared_from_this(), client.context_id);
    if (!offer && exchange_->must_move()) {
      return refuse(
          Status(Code::authentication,
                 "TCP without a job key needs the server's Unix socket, and there is none: pass key= (made by `hmc keygen`), "
                 "set HMC_JOB_KEY, or pass insecure=True on both sides"));
    }
  }
  const Status sent = offer ? exchange_->answer(offer->ticket, offer->address) : exchange_->answer(std::nullopt, {});
  if (!sent.ok()) refuse(sent);
}

void Handshake::choose_connection() {
  const Identity& server = exchange_->peer();
  if (exchange_->stream().passes_fds()) {
    if (exchange_->commit()) succeed();
    return;
  }
  if (!server.ticket || !server.move_address.starts_with("unix:") || !local_->options.same_host_upgrade)
    return stay(Status(Code::unsupported, "the server offers no Unix socket"));
  state_ = State::moving;
  watch_.stop();
  const std::weak_ptr<Handshake> weak = weak_from_this();
  child_ = std::make_shared<Handshake>(engine_, local_, *host_, [weak](Result<Established> outcome, const std::string&) {
    if (const auto self = weak.lock()) self->moved(std::move(outcome));
  });
  const Deadline limit = exchange_->must_move() ? limit_.due() : earlier(limit_.due(), Deadline::after(move_limit));
  child_->start_move(server.move_address, {*server.ticket, server.context_id}, remote_.address, limit);
}

// The move is decided: `outcome` is the channel, or why there is none.
void Handshake::moved(Result<Established> outcome) {
  if (state_ != State::moving) return;
  const auto self = shared_from_this();
  child_.reset();
  if (outcome.ok()) return end(std::move(outcome));
  state_ = State::exchange;
  stay(outcome.status());
}

void Handshake::stay(const Status& reason) {
  if (log_enabled(LogLevel::debug)) log(LogLevel::debug, "stays on TCP with " + remote_.address + ": " + reason.str());
  if (exchange_->must_move()) {
    return refuse(Status(Code::authentication,
                         "TCP without a job key is taken only between processes of one user on one host, and the Unix socket "
                         "could not be used (" +
                             std::string(reason.message()) +
                             "): pass key= (made by `hmc keygen`), set HMC_JOB_KEY, or pass insecure=True on both sides"));
  }
  if (exchange_->commit()) return succeed();
  watch();
}

// ---- the ways it ends ----

void Handshake::succeed() {
  const Identity& peer = exchange_->peer();
  Established result;
  watch_.stop();
  result.stream = exchange_->take_stream();
  result.identity.context_id = peer.context_id;
  result.identity.name = peer.name;
  result.identity.address = remote_.address;
  result.identity.epoch = peer.epoch;
  result.identity.same_host = result.stream->passes_fds();
  result.identity.encrypted = result.stream->encrypted();
  result.identity.pid = remote_.process.pid;
  result.process = std::move(remote_.process);
  result.peer_heartbeat_seconds = peer.heartbeat_seconds;
  if (const auto parent = parent_.lock()) parent->abandon(Status(Code::closed, "the connection moved to the Unix socket"));
  end(std::move(result));
}

void Handshake::refuse(const Status& reason) {
  exchange_->refuse(reason);
  watch_.stop();
  limit_.stop();
  state_ = State::linger;
  linger_.emplace(*engine_, exchange_->take_stream(), [this] { end(Status(Code::closed, "refused")); });
  tell(reason.with_context(remote_.address));
}

void Handshake::abandon(const Status& reason) { end(reason); }

void Handshake::end(Result<Established> outcome) {
  if (state_ == State::over) return;
  const auto self = shared_from_this();
  state_ = State::over;
  watch_.stop();
  limit_.stop();
  if (attempts_) attempts_->stop();
  // Only now, when its end is no longer taken for that of the move alone, after which this connection would be chosen.
  if (const auto child = std::exchange(child_, nullptr)) child->end(Status(Code::closed, "the move was given up"));
  linger_.reset();
  exchange_.reset();
  host_->forget(*this);
  tell(std::move(outcome));
}

void Handshake::tell(Result<Established> outcome) {
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(outcome), remote_.address);
}

const char* Handshake::waiting_for() const noexcept {
  switch (state_) {
    case State::connecting:
      return attempts_->waiting_for();
    case State::exchange:
      return exchange_->waiting_for();
    case State::moving:
      return "moving to the Unix socket";
    case State::idle:
    case State::linger:
    case State::over:
      break;
  }
  return "nothing more was expected";
}

}  // namespace hmc::control
