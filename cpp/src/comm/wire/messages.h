// Signals of two-sided messages: pure encoding and decoding, fuzzed. Little-endian, field by field.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/blob.h"
#include "comm/wire/envelope.h"
#include "hmc/status.h"

namespace hmc::messaging {

enum class Kind : std::uint8_t {
  eager = 1,     // head, then the payload
  announce = 2,  // RTS: a message that the receiver fetches, with the sender's exported region
  answer = 3,    // CTS: the receiver's region; the sender puts the lower part while the receiver gets the rest
  finish = 4,    // FIN: one side's part is done, or failed
  withdraw = 5,  // the sender takes an announcement back if it is not matched yet
  credit = 6,    // the receiver has consumed eager messages
  refuse = 7,    // the sender cannot reach the receiver's memory by the answer's transport: it is to answer anew
  halt = 8,      // the receiver withdraws its answer, and the sender's reply to that
};

// Head of an eager message and of an announcement: 24 bytes, so that 8 bytes of payload fit one cache line with the ring's own
// word.
struct Head {
  Envelope envelope;
  std::int64_t tag = 0;
  std::uint32_t call = 0;  // see Target; 24 bits
};
inline constexpr std::size_t head_bytes = 24;
// Of the eager message, without payload, that is the last of its sender's process in a scope. No user's tag.
inline constexpr std::int64_t leaving_tag = std::numeric_limits<std::int64_t>::max();
void write_head(std::array<std::byte, head_bytes>& out, Kind kind, const Head& head) noexcept;

struct Announce {
  Head head;
  std::uint64_t bytes = 0;
  std::uint64_t sender_op = 0;
  std::string transport;  // through which the region was exported; empty: the receiver says where the sender shall put
  std::string device;     // where the sender's memory is
  Bytes region;
};
struct Answer {
  std::uint64_t sender_op = 0;
  std::uint64_t receiver_op = 0;
  std::uint64_t lower = 0;  // the sender puts [0, lower); the receiver gets the rest
  std::string transport;    // through which the region was exported; empty: that of the announcement
  std::string device;       // where the receiver's memory is
  Bytes region;
};
struct Finish {
  std::uint64_t op = 0;  // the addressee's
  Code code = Code::ok;
  std::string message;
};
struct Withdraw {
  std::uint64_t sender_op = 0;
  bool leaving = false;  // the sender closes: a receive that the message would have met fails, and takes no later message instead
};
// The sender replies once it puts nothing more by that answer.
struct Halt {
  enum class What : std::uint8_t {
    request,
    kept,   // the message is announced again: another receive may have it
    ended,  // the send has ended; its finish was sent before
  };
  std::uint64_t op = 0;       // the addressee's
  std::uint64_t from_op = 0;  // the writer's
  What what = What::request;
};
struct Credit {
  std::uint64_t payload = 0;  // bytes
  std::uint64_t heads = 0;    // messages
};

inline constexpr std::size_t max_region_bytes = 1024;
inline constexpr std::size_t max_text_bytes = 256;

Bytes encode(const Announce& announce);
Bytes encode(const Answer& answer);
Bytes encode(const Finish& finish, Kind kind = Kind::finish);  // or refuse
Bytes encode(const Withdraw& withdraw);
Bytes encode(const Halt& halt);
Bytes encode(const Credit& credit);

// Each takes a whole signal (kind byte included); nullopt for anything malformed.
std::optional<Kind> kind_of(ByteSpan signal) noexcept;
// Of an eager message; its payload follows at head_bytes. Reads each byte once: another process may write to the signal.
std::optional<Head> decode_head(ByteSpan signal) noexcept;
std::optional<Announce> decode_announce(ByteSpan signal);
std::optional<Answer> decode_answer(ByteSpan signal);
std::optional<Finish> decode_finish(ByteSpan signal);  // and of refuse
std::optional<Withdraw> decode_withdraw(ByteSpan signal);
std::optional<Halt> decode_halt(ByteSpan signal);
std::optional<Credit> decode_credit(ByteSpan signal);

}  // namespace hmc::messaging
