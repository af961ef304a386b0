// What is said in a handshake, in order (see handshake.h), and what is refused.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "control/handshake.h"
#include "hmc/version.h"

namespace hmc::control {
namespace {

// A Unix socket answers at once or never will; a TCP connection that can stay must not wait longer.
constexpr auto move_limit = std::chrono::seconds(2);

std::string spoken(std::uint16_t number, std::string_view release) {
  return "wire version " + std::to_string(number) + " (HMC " + std::string(release) + ")";
}

}  // namespace

std::uint8_t Handshake::own_flags() const noexcept {
  const unsigned key = local_->key ? hello_has_key : 0;
  const unsigned insecure = local_->options.insecure && !local_->key ? hello_insecure : 0;
  return static_cast<std::uint8_t>(key | insecure);
}

void Handshake::send_hello(HelloKind kind, std::uint8_t detail, std::string_view text) {
  Bytes out;
  const auto magic = std::as_bytes(std::span(control_magic));
  out.insert(out.end(), magic.begin(), magic.end());
  const Bytes hello = encode_hello({wire_version, kind, detail, std::string(text)});
  out.insert(out.end(), hello.begin(), hello.end());
  static_cast<void>(stream_->send_raw(out));
}

bool Handshake::take_magic() {
  const ByteSpan in = stream_->input();
  const std::size_t n = std::min(in.size(), control_magic.size());
  if (n > 0 && std::memcmp(in.data(), control_magic.data(), n) != 0) {
    return fail(Status(Code::protocol, "what listens at " + remote_ + " is not HMC"));
  }
  if (n < control_magic.size()) return false;
  stream_->consume(n);
  magic_seen_ = true;
  return true;
}

bool Handshake::take_hello() {
  if (!magic_seen_ && !take_magic()) return false;
  std::size_t used = 0;
  auto hello = decode_hello(stream_->input(), used);
  if (!hello.ok()) return server_ ? refuse(hello.status()) : fail(hello.status().with_context(remote_));
  if (!*hello) return false;
  stream_->consume(used);
  return server_ ? hello_from_client(**hello) : hello_from_server(**hello);
}

bool Handshake::hello_from_client(const Hello& hello) {
  if (hello.version != wire_version) {
    return refuse(Status(Code::protocol, "the client speaks " + spoken(hello.version, printable(hello.text, 32)) +
                                             ", this server " + spoken(wire_version, version()) +
                                             ": install the same HMC release on both sides"));
  }
  const bool move = hello.kind == HelloKind::move;
  if ((!move && hello.kind != HelloKind::connect) || (move && !unix_))
    return refuse(Status(Code::protocol, "a hello of the wrong kind"));
  const bool client_key = (hello.detail & hello_has_key) != 0;
  const bool client_insecure = (hello.detail & hello_insecure) != 0;
  if (!unix_ && local_->key && !client_key) {
    return refuse(Status(Code::authentication,
                         "the server wants a job key and the client has none: pass the server's key= or set HMC_JOB_KEY to it"));
  }
  if (!unix_ && !local_->key && client_key) {
    return refuse(Status(Code::authentication,
                         "the client has a job key and the server has none: give the server the same key= or HMC_JOB_KEY"));
  }
  kind_ = hello.kind;
  must_move_ = !unix_ && !local_->key && !(local_->options.insecure && client_insecure);
  send_hello(HelloKind::accept, own_flags(), version());
  return after_hello();
}

bool Handshake::hello_from_server(const Hello& hello) {
  if (hello.kind == HelloKind::refuse) {
    std::string why = hello.text;
    if (hello.version != wire_version) {
      why += " [the server speaks wire version " + std::to_string(hello.version) + ", this process " +
             spoken(wire_version, version()) + "]";
    }
    return fail(Status(static_cast<Code>(hello.detail), "refused by " + remote_ + ": " + why));
  }
  if (hello.version != wire_version) {
    return fail(Status(Code::protocol, "the server at " + remote_ + " speaks " + spoken(hello.version, printable(hello.text, 32)) +
                                           ", this process " + spoken(wire_version, version()) +
                                           ": install the same HMC release on both sides"));
  }
  if (hello.kind != HelloKind::accept) return fail(Status(Code::protocol, remote_ + " answered with a hello of the wrong kind"));
  const bool server_key = (hello.detail & hello_has_key) != 0;
  if (!unix_ && server_key != local_->key.has_value()) {
    return fail(Status(Code::authentication, "only one of this process and the server at " + remote_ +
                                                 " has a job key: give both the same key= or HMC_JOB_KEY"));
  }
  must_move_ = !unix_ && !local_->key && !(local_->options.insecure && (hello.detail & hello_insecure) != 0);
  return after_hello();
}

// Called when the hellos are done, and once more when TLS is.
bool Handshake::after_hello() {
  accepted_ = true;
  if (secured() && !stream_->encrypted()) {
    state_ = State::tls;
    if (!local_->tls) {
      auto tls = TlsContext::create(*local_->key);
      if (!tls.ok()) return fail(tls.status());
      local_->tls = std::move(tls).value();
    }
    auto session = local_->tls->session(server_);
    if (!session.ok()) return fail(session.status());
    if (stream_->secure(std::move(session).value()) == Stream::Output::failed && stream_->status().code() != Code::peer_lost) {
      const Status reason = stream_->status().with_context(remote_);
      linger();
      tell(reason);
      return false;
    }
    return true;
  }
  state_ = State::identity;
  if (server_) return true;
  if (const Status sent = send_identity(presented_, {}); !sent.ok()) return fail(sent.with_context(remote_));
  return true;
}

Status Handshake::send_identity(const std::optional<Secret>& ticket, std::string_view move_address) {
  Identity own;
  own.context_id = local_->options.context_id;
  own.epoch = local_->epoch;
  own.heartbeat_seconds = local_->options.heartbeat_seconds;
  own.name = local_->options.name;
  own.ticket = ticket;
  own.move_address = std::string(move_address);
  std::vector<UniqueFd> fds;
  if (stream_->passes_fds()) {
    own.proof.emplace();
    random_bytes(*own.proof);
    HMC_ASSIGN(UniqueFd proof, make_proof(*own.proof));
    fds.push_back(std::move(proof));
  }
  static_cast<void>(stream_->send_frame(static_cast<MessageType>(FrameType::identity), encode_identity(own), std::move(fds)));
  return {};
}

bool Handshake::take_frame() {
  Stream::Frame frame;
  const auto taken = stream_->next_frame(max_handshake_payload, frame);
  if (!taken.ok()) return refuse(taken.status());
  if (!*taken) return false;
  switch (static_cast<FrameType>(frame.header.type)) {
    case FrameType::refusal:
      return fail(decode_refusal(frame.payload).with_context("refused by " + remote_));
    case FrameType::identity:
      if (state_ == State::identity) return identity_from_peer(frame);
      break;
    case FrameType::commit:
      if (state_ != State::decision || !server_ || !frame.payload.empty()) break;
      if (must_move_) {
        return refuse(
            Status(Code::authentication, "TCP without a job key is taken only from this host and user, through the Unix socket"));
      }
      succeed();
      return false;
    case FrameType::ping:
    case FrameType::goodbye:
      break;
  }
  return refuse(Status(Code::protocol, "an unexpected message of type " + std::to_string(frame.header.type) + " in the handshake"));
}

bool Handshake::identity_from_peer(const Stream::Frame& frame) {
  auto identity = decode_identity(frame.payload);
  if (!identity.ok()) return refuse(identity.status());
  peer_ = std::move(identity).value();
  if (stream_->passes_fds()) {
    if (frame.header.fds == 1 && frame.fds.empty()) {
      return refuse(
          Status(Code::out_of_memory, "no descriptor left to prove that both ends share a host; raise the limit (ulimit -n)"));
    }
    if (frame.header.fds != 1 || !peer_.proof || !check_proof(frame.fds.front().get(), *peer_.proof)) {
      return refuse(Status(Code::authentication, "no valid descriptor came with the identity"));
    }
  } else if (peer_.proof || frame.header.fds != 0) {
    return refuse(Status(Code::protocol, "a descriptor where none can be passed"));
  }
  if (expected_ && *expected_ != peer_.context_id) {
    return refuse(Status(Code::authentication, "the Unix socket belongs to another context"));
  }
  return server_ ? serve_identity() : choose_connection();
}

bool Handshake::serve_identity() {
  if (peer_.ticket.has_value() != (kind_ == HelloKind::move)) return refuse(Status(Code::protocol, "a ticket out of place"));
  std::optional<HandshakeHost::Offer> offer;
  if (peer_.ticket) {
    auto claim = host_->claim(*peer_.ticket);
    if (!claim || claim->context_id != peer_.context_id) {
      return refuse(Status(Code::authentication, "the ticket is unknown, spent or stale"));
    }
    parent_ = claim->parent;
    remote_ = claim->remote;
  } else if (!unix_) {
    offer = host_->make_offer(shared_from_this(), peer_.context_id);
    if (!offer && must_move_) {
      return refuse(
          Status(Code::authentication,
                 "TCP without a job key needs the server's Unix socket, and there is none: pass key= (made by `hmc keygen`), "
                 "set HMC_JOB_KEY, or pass insecure=True on both sides"));
    }
  }
  state_ = State::decision;
  const Status sent = offer ? send_identity(offer->ticket, offer->address) : send_identity(std::nullopt, {});
  if (!sent.ok()) return refuse(sent);
  return true;
}

bool Handshake::choose_connection() {
  state_ = State::decision;
  if (unix_) return !commit();
  const bool offered = peer_.ticket && peer_.move_address.starts_with("unix:");
  if (!offered || !local_->options.same_host_upgrade) {
    moved(Status(Code::unsupported, "the server offers no Unix socket"));
    return state_ == State::decision;
  }
  state_ = State::moving;
  unwatch();
  const std::weak_ptr<Handshake> weak = weak_from_this();
  child_ = std::make_shared<Handshake>(engine_, local_, *host_, [weak](Result<Established> outcome) {
    if (const auto self = weak.lock()) self->moved(std::move(outcome));
  });
  const Deadline soon = Deadline::after(move_limit);
  child_->start_move({peer_.move_address, *peer_.ticket}, peer_.context_id, remote_,
                     must_move_ || deadline_.when() < soon.when() ? deadline_ : soon);
  return false;
}

// The move is decided: `outcome` is the channel, or why there is none.
void Handshake::moved(Result<Established> outcome) {
  if (state_ != State::moving && state_ != State::decision) return;
  const auto self = shared_from_this();
  child_.reset();
  if (outcome.ok()) {
    release();
    return tell(std::move(outcome));
  }
  if (log_enabled(LogLevel::debug)) log(LogLevel::debug, "stays on TCP with " + remote_ + ": " + outcome.status().str());
  state_ = State::decision;
  if (must_move_) {
    refuse(Status(Code::authentication,
                  "TCP without a job key is taken only between processes of one user on one host, and the Unix socket "
                  "could not be used (" +
                      std::string(outcome.status().message()) +
                      "): pass key= (made by `hmc keygen`), set HMC_JOB_KEY, or pass insecure=True on both sides"));
    return;
  }
  if (!commit()) watch();
}

// True: done. False: the connection broke; what the server said last is still to be read.
bool Handshake::commit() {
  if (stream_->send_frame(static_cast<MessageType>(FrameType::commit), {}) == Stream::Output::failed) return false;
  succeed();
  return true;
}

}  // namespace hmc::control
