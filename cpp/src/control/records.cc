#include "control/records.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/wire.h"

namespace hmc::control {
namespace {

constexpr std::size_t max_reason = 600;

ByteSpan as_bytes(const Secret& secret) noexcept { return ByteSpan(secret); }

void write_optional(WireWriter& out, const std::optional<Secret>& secret) {
  if (secret) {
    out.u8(1).raw(as_bytes(*secret));
  } else {
    out.u8(0);
  }
}

std::optional<Secret> read_optional(WireReader& in) noexcept {
  const std::uint8_t present = in.u8();
  if (present > 1) in.fail();
  if (present != 1) return std::nullopt;
  const ByteSpan raw = in.raw(secret_bytes);
  if (raw.size() != secret_bytes) return std::nullopt;
  Secret secret;
  std::ranges::copy(raw, secret.begin());
  return secret;
}

// The codes a refusal may carry; anything else a peer writes there reads as protocol.
Code refusal_code(std::uint8_t value) noexcept {
  switch (static_cast<Code>(value)) {
    case Code::authentication:
      return Code::authentication;
    case Code::timeout:
      return Code::timeout;
    case Code::closed:
      return Code::closed;
    case Code::unsupported:
      return Code::unsupported;
    case Code::out_of_memory:
      return Code::out_of_memory;
    case Code::ok:
    case Code::invalid_argument:
    case Code::cancelled:
    case Code::peer_lost:
    case Code::device:
    case Code::transport:
    case Code::stale:
    case Code::would_block:
    case Code::protocol:
      return Code::protocol;
  }
  return Code::protocol;
}

// Names reach logs and Python: valid UTF-8 without control characters, or plain ASCII.
std::string clean_name(std::string name) {
  std::string_view left = name;
  while (!left.empty()) {
    const auto lead = static_cast<unsigned char>(left[0]);
    const std::size_t length = lead < 0x20 || lead == 0x7f ? 0 : utf8_character(left);
    if (length == 0) return printable(name, max_name);
    left.remove_prefix(length);
  }
  return name;
}

}  // namespace

Bytes encode_hello(const Hello& hello) {
  const std::string text = std::string(cut_utf8(hello.text, max_reason));
  Bytes out;
  WireWriter(out)
      .u16(static_cast<std::uint16_t>(6 + text.size()))
      .u16(hello.version)
      .u8(static_cast<std::uint8_t>(hello.kind))
      .u8(hello.detail)
      .u16(static_cast<std::uint16_t>(text.size()))
      .raw(std::as_bytes(std::span(text)));
  return out;
}

Result<std::optional<Hello>> decode_hello(ByteSpan in, std::size_t& used) {
  if (in.size() < 2) return std::optional<Hello>();
  WireReader reader(in);
  const std::size_t length = reader.u16();
  if (length < 6 || length > max_hello_body) return Status(Code::protocol, "a hello of " + std::to_string(length) + " bytes");
  if (in.size() < 2 + length) return std::optional<Hello>();
  WireReader body(in.subspan(2, length));
  Hello hello;
  hello.version = body.u16();
  const std::uint8_t kind = body.u8();
  hello.detail = body.u8();
  const ByteSpan text = body.raw(body.u16());
  if (!body.ok() || kind < 1 || kind > 4) return Status(Code::protocol, "a malformed hello");
  hello.kind = static_cast<HelloKind>(kind);
  hello.text = printable(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()), max_reason);
  if (hello.kind == HelloKind::refuse) hello.detail = static_cast<std::uint8_t>(refusal_code(hello.detail));
  used = 2 + length;
  return std::optional<Hello>(std::move(hello));
}

std::array<std::byte, frame_header_bytes> encode_frame_header(const FrameHeader& header) noexcept {
  std::array<std::byte, frame_header_bytes> out{};
  for (std::size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(header.length >> (8 * i));
  out[4] = static_cast<std::byte>(header.type);
  out[5] = static_cast<std::byte>(header.fds);
  return out;
}

Result<FrameHeader> decode_frame_header(ByteSpan in, std::size_t limit) {
  WireReader reader(in);
  FrameHeader header;
  header.length = reader.u32();
  header.type = reader.u8();
  header.fds = reader.u8();
  const std::uint16_t reserved = reader.u16();
  if (!reader.ok() || reserved != 0 || header.type == 0) return Status(Code::protocol, "a malformed frame header");
  if (header.length > limit) {
    return Status(Code::protocol,
                  "a message of " + std::to_string(header.length) + " bytes, more than the limit of " + std::to_string(limit));
  }
  if (header.fds > max_control_fds) return Status(Code::protocol, "a message with " + std::to_string(header.fds) + " descriptors");
  return header;
}

Bytes encode_identity(const Identity& identity) {
  Bytes out;
  WireWriter writer(out);
  writer.u64(identity.context_id[0]).u64(identity.context_id[1]).u64(identity.epoch).f64(identity.heartbeat_seconds);
  writer.text(cut_utf8(identity.name, max_name));
  write_optional(writer, identity.proof);
  write_optional(writer, identity.ticket);
  writer.text(identity.move_address);
  return out;
}

Result<Identity> decode_identity(ByteSpan in) {
  WireReader reader(in);
  Identity identity;
  identity.context_id[0] = reader.u64();
  identity.context_id[1] = reader.u64();
  identity.epoch = reader.u64();
  const double heartbeat = reader.f64();
  identity.name = clean_name(reader.text(max_name));
  identity.proof = read_optional(reader);
  identity.ticket = read_optional(reader);
  identity.move_address = reader.text(max_name);
  if (!reader.finish() || !std::isfinite(heartbeat)) return Status(Code::protocol, "a malformed identity");
  identity.heartbeat_seconds = std::clamp(heartbeat, 0.1, 3600.0);
  return identity;
}

Bytes encode_refusal(const Status& reason) {
  Bytes out;
  WireWriter(out).u8(static_cast<std::uint8_t>(reason.code())).text(cut_utf8(reason.message(), max_reason));
  return out;
}

Status decode_refusal(ByteSpan in) {
  WireReader reader(in);
  const Code code = refusal_code(reader.u8());
  const std::string text = reader.text(max_reason);
  if (!reader.finish()) return Status(Code::protocol, "a malformed refusal");
  return Status(code, printable(text, max_reason));
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out(text.substr(0, limit));
  std::ranges::replace_if(out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

bool equal_secrets(const Secret& a, const Secret& b) noexcept {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  // The compiler must not learn that one differing byte decides.
  const volatile unsigned seen = difference;
  return seen == 0;
}

}  // namespace hmc::control
