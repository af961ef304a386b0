// The mechanics of a handshake: connecting, waiting, time limits, and the ways it ends. The protocol is in handshake_steps.cc.
#include "control/handshake.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "base/log.h"
#include "base/random.h"
#include "hmc/version.h"

namespace hmc::control {
namespace {

constexpr auto handshake_limit = std::chrono::seconds(10);
constexpr auto linger_limit = std::chrono::seconds(1);
constexpr std::size_t max_unauthenticated_bytes = 64 * 1024;
constexpr std::size_t max_discarded_bytes = 64 * 1024;
// Of a client whose connection is closed without an answer: about four seconds together, for what is no HMC server closes
// connections, too. Once a server has said hello, as many as there is time for.
constexpr unsigned max_retries = 12;
constexpr std::chrono::milliseconds first_retry_pause{5};
constexpr std::chrono::milliseconds longest_retry_pause{640};

Deadline earlier(Deadline a, Deadline b) { return a.when() < b.when() ? a : b; }

Status connect_status(std::string_view remote, const Status& reason) {
  const int error = static_cast<int>(reason.native());
  if (error <= 0 || reason.code() == Code::invalid_argument) return reason;  // the address itself is wrong
  const std::string what = "cannot connect to " + std::string(remote);
  switch (error) {
    case EACCES:
    case EPERM:
      return Status(Code::authentication, what + ": permission denied (a Unix socket serves only the user who made it)", error);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return errno_status(what, error);
    case ECONNREFUSED:
    case ENOENT:
      return Status(Code::peer_lost, what + ": nobody listens there", error);
    default:
      return Status(Code::peer_lost, std::string(errno_status(what, error).message()), error);
  }
}

}  // namespace

Handshake::Handshake(std::shared_ptr<Engine> engine, std::shared_ptr<const LocalSide> local, HandshakeHost& host, Done done)
    : engine_(std::move(engine)), local_(std::move(local)), host_(&host), done_(std::move(done)) {}

Handshake::~Handshake() {
  unwatch();
  if (timer_) engine_->cancel_timer(*timer_);
}

void Handshake::start_server(AcceptedSocket socket) {
  server_ = true;
  magic_seen_ = true;
  unix_ = socket.unix_socket;
  remote_ = std::move(socket.remote);
  source_ = socket.source;
  limit_time(Deadline::after(handshake_limit));
  open(std::move(socket.fd));
  if (state_ == State::hello) receive();  // most have sent it by now
}

void Handshake::start_client(std::string_view address, Deadline deadline) {
  target_ = std::string(address);
  client_deadline_ = deadline;
  if (remote_.empty()) remote_ = target_;
  unix_ = address.starts_with("unix");
  state_ = State::connecting;
  limit_time(deadline);
  auto connecting = Connecting::start(address);
  if (connecting.ok()) {
    connecting_ = std::move(connecting).value();
    watch();
    return;
  }
  // Never from inside the call that started us.
  const Status reason = connecting.status();
  const auto self = shared_from_this();
  if (unix_ && reason.native() == EAGAIN) {
    // The server's backlog is full: a Unix socket says so at once instead of waiting.
    engine_->at(Deadline::after(std::chrono::milliseconds(5)), [self, deadline] {
      if (self->state_ == State::connecting) self->start_client(std::string(self->target_), deadline);
    });
    return;
  }
  engine_->defer([self, reason] { self->fail(connect_status(self->target_, reason)); });
}

void Handshake::start_move(const HandshakeHost::Offer& offer, const ContextId& expected, std::string_view shown_address,
                           Deadline deadline) {
  kind_ = HelloKind::move;
  presented_ = offer.ticket;
  expected_ = expected;
  remote_ = std::string(shown_address);
  start_client(offer.address, deadline);
}

void Handshake::limit_time(Deadline deadline) {
  if (timer_) engine_->cancel_timer(*timer_);
  timer_.reset();
  deadline_ = deadline;
  if (deadline.is_never()) return;
  timer_ = engine_->at(deadline, [this] {
    timer_.reset();
    const auto self = shared_from_this();
    if (state_ == State::linger) return release();
    fail(Status(Code::timeout, "the handshake with " + remote_ + " did not end in time: " + waiting_for()));
  });
}

void Handshake::open(UniqueFd socket) {
  const int fd = socket.get();
  stream_ = std::make_unique<Stream>(std::move(socket), unix_);
  state_ = State::hello;
  if (!unix_) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  } else {
    auto process = peer_process(fd);
    if (!process.ok()) {
      if (server_) {
        refuse(process.status());
      } else {
        fail(process.status().with_context(remote_));
      }
      return;
    }
    process_ = std::move(process).value();
    authenticated_ = true;
    if (server_) remote_ += " (pid " + std::to_string(process_.pid) + ")";
  }
  if (!server_) send_hello(kind_, own_flags(), version());
  watch();
}

void Handshake::connected() {
  unwatch();
  const auto connected = connecting_->advance();
  if (!connected.ok()) {
    fail(connect_status(target_, connected.status()));
    return;
  }
  if (!*connected) return watch();
  limit_time(earlier(deadline_, Deadline::after(handshake_limit)));
  open(connecting_->take());
  connecting_.reset();
}

void Handshake::on_ready(std::uint32_t events) {
  const auto self = shared_from_this();
  switch (state_) {
    case State::connecting:
      return connected();
    case State::linger:
      return discard_input();
    case State::hello:
    case State::tls:
    case State::identity:
    case State::decision:
      // A failed write is no news by itself: the reason may still be waiting to be read.
      if ((events & EPOLLOUT) != 0) static_cast<void>(stream_->flush());
      if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
        receive();
      } else {
        watch();
      }
      return;
    case State::idle:
    case State::moving:
    case State::over:
      return;
  }
}

void Handshake::receive() {
  switch (stream_->read()) {
    case Stream::Input::blocked:
      return watch();
    case Stream::Input::data:
      if (!authenticated_ && stream_->received() > max_unauthenticated_bytes) {
        refuse(Status(Code::protocol, "too many bytes before authentication"));
        return;
      }
      return advance();
    case Stream::Input::ended:
      advance();
      if (state_ == State::hello || state_ == State::tls || state_ == State::identity || state_ == State::decision) {
        const Status reason(Code::peer_lost, remote_ + " closed the connection during the handshake: " + waiting_for());
        if (!retry(reason)) fail(reason);
      }
      return;
    case Stream::Input::failed: {
      const Status reason = stream_->status().with_context(remote_);
      if (reason.code() == Code::peer_lost) {
        if (!retry(reason)) fail(reason);
        return;
      }
      linger();  // the TLS alert is on its way
      return tell(reason);
    }
  }
}

// A busy server discards clients without a word. False: not (any more).
bool Handshake::retry(const Status& reason) {
  if (server_) return false;
  heard_ = heard_ || accepted_;
  if (!heard_ && retries_ == max_retries) return false;
  // Random, so that clients that were discarded together do not return together.
  const auto longest = std::min(longest_retry_pause, first_retry_pause * (1U << std::min(retries_, 10U)));
  const auto pause = longest / 2 + std::chrono::milliseconds(random_u64() % static_cast<std::uint64_t>(longest.count() / 2 + 1));
  const Deadline again = Deadline::after(pause);
  if (client_deadline_.when() <= again.when()) return false;
  ++retries_;
  if (log_enabled(LogLevel::debug)) log(LogLevel::debug, reason.str() + "; connecting again");
  unwatch();
  stream_.reset();
  accepted_ = magic_seen_ = authenticated_ = false;
  state_ = State::connecting;
  limit_time(client_deadline_);
  const auto self = shared_from_this();
  engine_->at(again, [self] {
    if (self->state_ == State::connecting) self->start_client(std::string(self->target_), self->client_deadline_);
  });
  return true;
}

void Handshake::advance() {
  bool more = true;
  while (more) {
    switch (state_) {
      case State::hello:
        more = take_hello();
        break;
      case State::tls:
        more = stream_->established();
        if (more) {
          authenticated_ = true;
          more = after_hello();
        }
        break;
      case State::identity:
      case State::decision:
        more = take_frame();
        break;
      case State::idle:
      case State::connecting:
      case State::moving:
      case State::linger:
      case State::over:
        return;
    }
  }
  if (state_ != State::over && state_ != State::linger && state_ != State::moving) watch();
}

void Handshake::watch() {
  const int fd = stream_ ? stream_->fd() : connecting_->fd();
  std::uint32_t events = state_ == State::connecting ? connecting_->events() : static_cast<std::uint32_t>(EPOLLIN);
  if (state_ != State::linger && stream_ && stream_->status().ok() && stream_->queued() > 0) events |= EPOLLOUT;
  if (watched_fd_ == fd) {
    if (watched_ != events) engine_->modify(fd, events);
  } else {
    unwatch();
    if (const Status status = engine_->watch(fd, events, *this); !status.ok()) {
      const auto self = shared_from_this();
      engine_->defer([self, status] { self->fail(status); });
      return;
    }
    watched_fd_ = fd;
  }
  watched_ = events;
}

void Handshake::unwatch() {
  if (watched_fd_ < 0) return;
  engine_->unwatch(watched_fd_);
  watched_fd_ = -1;
}

void Handshake::tell(Result<Established> outcome) {
  if (std::exchange(told_, true)) return;
  const Done done = std::move(done_);
  done_ = nullptr;
  if (done) done(std::move(outcome));
}

bool Handshake::refuse(const Status& reason) {
  if (!accepted_ && server_) {
    send_hello(HelloKind::refuse, static_cast<std::uint8_t>(reason.code()), reason.message());
  } else if (accepted_ && stream_->established()) {
    static_cast<void>(stream_->send_frame(static_cast<MessageType>(FrameType::refusal), encode_refusal(reason)));
  }
  linger();
  tell(reason.with_context(remote_));
  return false;
}

bool Handshake::fail(const Status& reason) {
  if (state_ == State::over) return false;
  const auto self = shared_from_this();
  release();
  tell(reason);
  return false;
}

// Closing with unread input resets the connection, and the peer would lose what we said last: wait until it has gone, for a while.
void Handshake::linger() {
  child_.reset();
  state_ = State::linger;
  stream_->shutdown_write();
  limit_time(Deadline::after(linger_limit));
  watch();
}

void Handshake::discard_input() {
  std::array<char, 4096> waste;
  for (;;) {
    const ssize_t n = recv(stream_->fd(), waste.data(), waste.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) break;
    discarded_ += static_cast<std::size_t>(n);
    if (discarded_ > max_discarded_bytes) break;
  }
  release();
}

void Handshake::succeed() {
  const auto self = shared_from_this();
  Established result;
  unwatch();
  result.stream = std::move(stream_);
  result.identity.context_id = peer_.context_id;
  result.identity.name = peer_.name;
  result.identity.address = remote_;
  result.identity.epoch = peer_.epoch;
  result.identity.same_host = result.stream->passes_fds();
  result.identity.encrypted = result.stream->encrypted();
  result.identity.pid = process_.pid;
  result.process = std::move(process_);
  result.peer_heartbeat_seconds = peer_.heartbeat_seconds;
  if (const auto parent = parent_.lock()) parent->superseded();
  release();
  tell(std::move(result));
}

void Handshake::superseded() { abandon(Status(Code::closed, "the connection moved to the Unix socket")); }

void Handshake::abandon(const Status& reason) {
  const auto self = shared_from_this();
  if (child_) std::exchange(child_, nullptr)->abandon(reason);
  fail(reason);
}

void Handshake::release() {
  const auto self = shared_from_this();
  state_ = State::over;
  unwatch();
  if (timer_) engine_->cancel_timer(*timer_);
  timer_.reset();
  child_.reset();
  stream_.reset();
  connecting_.reset();
  host_->forget(*this);
}

const char* Handshake::waiting_for() const noexcept {
  switch (state_) {
    case State::connecting:
      if (connecting_ && connecting_->looking_up()) return "the name server does not answer; use a numeric address";
      return retries_ == 0 ? "no answer to the connection request"
                           : "the server closed every connection before it had answered (is it overloaded?)";
    case State::hello:
      return server_ ? "waiting for the client's hello" : "waiting for the server's hello (is that an HMC address?)";
    case State::tls:
      return "waiting for TLS";
    case State::identity:
      return "waiting for the peer's identity";
    case State::decision:
      return "waiting for the client to choose a connection";
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
