// What control connections say, as bytes: the plaintext hello, frames, identities and refusals. Pure codecs, fuzzed without
// sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "control/channel.h"
#include "hmc/status.h"
#include "hmc/version.h"

namespace hmc::control {

inline constexpr std::size_t secret_bytes = 16;  // tickets and proofs: 128 bits
using Secret = std::array<std::byte, secret_bytes>;

// ---- hello: u16 length | u16 wire version, u8 kind, u8 detail, u16 length and text, anything ----
// It keeps its layout for ever, so that every version can tell every other one why it is refused; later versions may append to it.
// hmc::wire_version is raised whenever anything behind it changes.

inline constexpr std::size_t max_hello_body = 1024;

enum class HelloKind : std::uint8_t {
  connect = 1,  // client: a new channel
  move = 2,     // client: a channel that comes over from TCP with a ticket
  accept = 3,   // server: go on
  refuse = 4,   // server: text says why; the connection ends
};

// `detail` of connect, move and accept.
inline constexpr std::uint8_t hello_has_key = 1;   // the sender has a job key
inline constexpr std::uint8_t hello_insecure = 2;  // the sender takes TCP without a key

struct Hello {
  std::uint16_t version = wire_version;
  HelloKind kind = HelloKind::connect;
  std::uint8_t detail = 0;  // flags; of refuse: the Code
  std::string text;         // the sender's HMC version; of refuse: the reason
};

Bytes encode_hello(const Hello& hello);
// nullopt while `in` holds too little; else `used` is what the hello took. Errors: protocol.
Result<std::optional<Hello>> decode_hello(ByteSpan in, std::size_t& used);

// ---- frames: u32 payload length, u8 type, u8 descriptor count, u16 zero | payload ----

inline constexpr std::size_t frame_header_bytes = 8;

// Types below 100 are control's own.
enum class FrameType : MessageType {
  identity = 1,  // who I am, first in each direction
  refusal = 2,   // ends the connection with a reason
  commit = 3,    // client, last of the handshake: this connection is the channel
  ping = 4,      // I am alive; no answer expected
  goodbye = 5,   // nothing follows
};
inline constexpr MessageType first_user_type = 100;

struct FrameHeader {
  std::uint32_t length = 0;
  MessageType type = 0;
  std::uint8_t fds = 0;
};

std::array<std::byte, frame_header_bytes> encode_frame_header(const FrameHeader& header) noexcept;
// Reads the first eight bytes of `in` (there must be as many). Errors: protocol, also for payloads beyond `limit`.
Result<FrameHeader> decode_frame_header(ByteSpan in, std::size_t limit);

// ---- payloads of the handshake ----

inline constexpr std::size_t max_handshake_payload = 4096;
inline constexpr std::size_t max_name = 255;

struct Identity {
  ContextId context_id{};
  std::uint64_t epoch = 0;
  double heartbeat_seconds = 5;  // clamped to [0.1, 3600] when decoded
  std::string name;
  std::optional<Secret> proof;   // Unix: what the descriptor that comes along holds
  std::optional<Secret> ticket;  // server over TCP: offered; client over Unix: presented
  std::string move_address;      // server over TCP: where the ticket is good
};

Bytes encode_identity(const Identity& identity);
Result<Identity> decode_identity(ByteSpan in);

Bytes encode_refusal(const Status& reason);
Status decode_refusal(ByteSpan in);  // never ok; protocol when it cannot be read

// Peer text fit for messages and logs: control characters and what is not ASCII become '?', at most `limit` bytes.
std::string printable(std::string_view text, std::size_t limit);

// Takes the same time whatever differs.
bool equal_secrets(const Secret& a, const Secret& b) noexcept;

}  // namespace hmc::control
