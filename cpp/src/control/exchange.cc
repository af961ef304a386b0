#include "control/exchange.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/random.h"
#include "control/process.h"
#include "hmc/version.h"

namespace hmc::control {
namespace {

std::string spoken(std::uint16_t number, std::string_view release) {
  return "wire version " + std::to_string(number) + " (HMC " + std::string(release) + ")";
}

std::uint8_t own_flags(const LocalSide& local) noexcept {
  const unsigned key = local.key ? hello_has_key : 0;
  const unsigned insecure = local.options.insecure && !local.key ? hello_insecure : 0;
  return static_cast<std::uint8_t>(key | insecure);
}

Exchange::Turn refused(Status reason) { return {Exchange::Step::refuse, std::move(reason)}; }
Exchange::Turn failed(Status reason) { return {Exchange::Step::fail, std::move(reason)}; }

Status send_identity(Stream& stream, const LocalSide& local, const std::optional<Secret>& ticket, std::string_view move_address) {
  Identity own;
  own.context_id = local.options.context_id;
  own.epoch = local.epoch;
  own.heartbeat_seconds = local.options.heartbeat_seconds;
  own.name = local.options.name;
  own.ticket = ticket;
  own.move_address = std::string(move_address);
  std::vector<UniqueFd> fds;
  if (stream.passes_fds()) {
    own.proof.emplace();
    random_bytes(*own.proof);
    HMC_ASSIGN(UniqueFd proof, make_proof(*own.proof));
    fds.push_back(std::move(proof));
  }
  static_cast<void>(stream.send_frame(static_cast<MessageType>(FrameType::identity), encode_identity(own), std::move(fds)));
  return {};
}

}  // namespace

Exchange::Exchange(const LocalSide& local, std::unique_ptr<Stream> stream, bool server, const std::optional<MoveTicket>& ticket)
    : local_(local),
      stream_(std::move(stream)),
      server_(server),
      ticket_(ticket),
      kind_(ticket_ ? HelloKind::move : HelloKind::connect),
      magic_seen_(server) {}  // the listener has read the client's

void Exchange::greet() { send_hello(kind_, own_flags(local_), version()); }

Exchange::Turn Exchange::advance(const std::string& remote) {
  for (;;) {
    Next next;
    switch (phase_) {
      case Phase::hello:
        next = take_hello(remote);
        // Each further byte could bring more.
        if (next && next->step == Step::wait && stream_->holds_fds())
          return failed(Status(Code::protocol, remote + " sent descriptors with half a hello"));
        break;
      case Phase::tls:
        if (!stream_->established()) return {};
        authenticated_ = true;
        next = start_identities(remote);
        break;
      case Phase::identity:
      case Phase::decision:
        next = take_frame(remote);
        break;
    }
    if (next) return std::move(*next);
  }
}

// ---- hellos ----

void Exchange::send_hello(HelloKind kind, std::uint8_t detail, std::string_view text) {
  Bytes out;
  const auto magic = std::as_bytes(std::span(control_magic));
  out.insert(out.end(), magic.begin(), magic.end());
  const Bytes hello = encode_hello({wire_version, kind, detail, std::string(text)});
  out.insert(out.end(), hello.begin(), hello.end());
  static_cast<void>(stream_->send_raw(out));
}

Exchange::Next Exchange::take_magic(const std::string& remote) {
  const ByteSpan in = stream_->input();
  const std::size_t n = std::min(in.size(), control_magic.size());
  if (n > 0 && std::memcmp(in.data(), control_magic.data(), n) != 0) {
    return failed(Status(Code::protocol, "what listens at " + remote + " is not HMC"));
  }
  if (n < control_magic.size()) return Turn{};
  stream_->consume(n);
  magic_seen_ = true;
  return std::nullopt;
}

Exchange::Next Exchange::take_hello(const std::string& remote) {
  if (!magic_seen_) {
    if (auto next = take_magic(remote)) return next;
  }
  std::size_t used = 0;
  auto hello = decode_hello(stream_->input(), used);
  if (!hello.ok()) return server_ ? refused(hello.status()) : failed(hello.status().with_context(remote));
  if (!*hello) return Turn{};
  stream_->consume(used);
  if (auto next = server_ ? hello_from_client(**hello) : hello_from_server(**hello, remote)) return next;
  return local_.key && !stream_->passes_fds() ? start_tls() : start_identities(remote);
}

Exchange::Next Exchange::hello_from_client(const Hello& hello) {
  if (hello.version != wire_version) {
    return refused(Status(Code::protocol, "the client speaks " + spoken(hello.version, printable(hello.text, 32)) +
                                              ", this server " + spoken(wire_version, version()) +
                                              ": install the same HMC release on both sides"));
  }
  const bool tcp = !stream_->passes_fds();
  const bool move = hello.kind == HelloKind::move;
  if ((!move && hello.kind != HelloKind::connect) || (move && tcp))
    return refused(Status(Code::protocol, "a hello of the wrong kind"));
  const bool client_key = (hello.detail & hello_has_key) != 0;
  const bool client_insecure = (hello.detail & hello_insecure) != 0;
  if (tcp && local_.key && !client_key) {
    return refused(Status(Code::authentication,
                          "the server wants a job key and the client has none: pass the server's key= or set HMC_JOB_KEY to it"));
  }
  if (tcp && !local_.key && client_key) {
    return refused(Status(Code::authentication,
                          "the client has a job key and the server has none: give the server the same key= or HMC_JOB_KEY"));
  }
  kind_ = hello.kind;
  must_move_ = tcp && !local_.key && !(local_.options.insecure && client_insecure);
  send_hello(HelloKind::accept, own_flags(local_), version());
  return std::nullopt;
}

Exchange::Next Exchange::hello_from_server(const Hello& hello, const std::string& remote) {
  if (hello.kind == HelloKind::refuse) {
    std::string why = hello.text;
    if (hello.version != wire_version) {
      why += " [the server speaks wire version " + std::to_string(hello.version) + ", this process " +
             spoken(wire_version, version()) + "]";
    }
    return failed(Status(static_cast<Code>(hello.detail), "refused by " + remote + ": " + why));
  }
  if (hello.version != wire_version) {
    return failed(Status(Code::protocol, "the server at " + remote + " speaks " + spoken(hello.version, printable(hello.text, 32)) +
                                             ", this process " + spoken(wire_version, version()) +
                                             ": install the same HMC release on both sides"));
  }
  if (hello.kind != HelloKind::accept) return failed(Status(Code::protocol, remote + " answered with a hello of the wrong kind"));
  const bool tcp = !stream_->passes_fds();
  const bool server_key = (hello.detail & hello_has_key) != 0;
  if (tcp && server_key != local_.key.has_value()) {
    return failed(Status(Code::authentication, "only one of this process and the server at " + remote +
                                                   " has a job key: give both the same key= or HMC_JOB_KEY"));
  }
  must_move_ = tcp && !local_.key && !(local_.options.insecure && (hello.detail & hello_insecure) != 0);
  return std::nullopt;
}

Exchange::Next Exchange::start_tls() {
  phase_ = Phase::tls;
  if (!local_.tls) {
    auto tls = TlsContext::create(*local_.key);
    if (!tls.ok()) return failed(tls.status());
    local_.tls = std::move(tls).value();
  }
  auto session = local_.tls->session(server_);
  if (!session.ok()) return failed(session.status());
  if (stream_->secure(std::move(session).value()) == Stream::Output::failed && stream_->status().code() != Code::peer_lost)
    return refused(stream_->status());
  return std::nullopt;
}

// ---- identities ----

Exchange::Next Exchange::start_identities(const std::string& remote) {
  phase_ = Phase::identity;
  if (server_) return std::nullopt;
  const auto ticket = ticket_ ? std::optional(ticket_->secret) : std::nullopt;
  if (const Status sent = send_identity(*stream_, local_, ticket, {}); !sent.ok()) return failed(sent.with_context(remote));
  return std::nullopt;
}

Exchange::Next Exchange::take_frame(const std::string& remote) {
  Stream::Frame frame;
  const auto taken = stream_->next_frame(max_handshake_payload, frame);
  if (!taken.ok()) return refused(taken.status());
  if (!*taken) return Turn{};
  switch (static_cast<FrameType>(frame.header.type)) {
    case FrameType::refusal:
      return failed(decode_refusal(frame.payload).with_context("refused by " + remote));
    case FrameType::identity:
      if (phase_ == Phase::identity) return identity_from_peer(frame);
      break;
    case FrameType::commit:
      if (phase_ != Phase::decision || !server_ || !frame.payload.empty()) break;
      if (must_move_) {
        return refused(
            Status(Code::authentication, "TCP without a job key is taken only from this host and user, through the Unix socket"));
      }
      return Turn{Step::committed};
    case FrameType::ping:
    case FrameType::goodbye:
      break;
  }
  return refused(
      Status(Code::protocol, "an unexpected message of type " + std::to_string(frame.header.type) + " in the handshake"));
}

Exchange::Next Exchange::identity_from_peer(const Stream::Frame& frame) {
  auto identity = decode_identity(frame.payload);
  if (!identity.ok()) return refused(identity.status());
  peer_ = std::move(identity).value();
  if (stream_->passes_fds()) {
    if (frame.header.fds == 1 && frame.fds.empty()) {
      return refused(
          Status(Code::out_of_memory, "no descriptor left to prove that both ends share a host; raise the limit (ulimit -n)"));
    }
    if (frame.header.fds != 1 || !peer_.proof || !check_proof(frame.fds.front().get(), *peer_.proof)) {
      return refused(Status(Code::authentication, "no valid descriptor came with the identity"));
    }
  } else if (peer_.proof || frame.header.fds != 0) {
    return refused(Status(Code::protocol, "a descriptor where none can be passed"));
  }
  if (ticket_ && ticket_->server != peer_.context_id) {
    return refused(Status(Code::authentication, "the Unix socket belongs to another context"));
  }
  if (server_ && peer_.ticket.has_value() != (kind_ == HelloKind::move)) {
    return refused(Status(Code::protocol, "a ticket out of place"));
  }
  if (!server_) phase_ = Phase::decision;
  return Turn{Step::identified};
}

Status Exchange::answer(const std::optional<Secret>& ticket, std::string_view move_address) {
  phase_ = Phase::decision;
  return send_identity(*stream_, local_, ticket, move_address);
}

bool Exchange::commit() { return stream_->send_frame(static_cast<MessageType>(FrameType::commit), {}) != Stream::Output::failed; }

void Exchange::refuse(const Status& reason) {
  if (!greeted()) {
    if (server_) send_hello(HelloKind::refuse, static_cast<std::uint8_t>(reason.code()), reason.message());
  } else if (stream_->established()) {
    static_cast<void>(stream_->send_frame(static_cast<MessageType>(FrameType::refusal), encode_refusal(reason)));
  }
}

const char* Exchange::waiting_for() const noexcept {
  switch (phase_) {
    case Phase::hello:
      return server_ ? "waiting for the client's hello" : "waiting for the server's hello (is that an HMC address?)";
    case Phase::tls:
      return "waiting for TLS";
    case Phase::identity:
      return "waiting for the peer's identity";
    case Phase::decision:
      break;
  }
  return "waiting for the client to choose a connection";
}

}  // namespace hmc::control
