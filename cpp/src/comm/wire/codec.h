// What comm says to comm over a control channel (types 100..199), as plain values and pure functions.
// Every decoder takes untrusted bytes, bounds each length, and answers nullopt for anything that is not exactly one message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/blob.h"
#include "control/channel.h"
#include "hmc/buffer.h"
#include "hmc/status.h"

namespace hmc::wire {

inline constexpr MessageType hello = 100, address = 101, endpoint_ready = 102, endpoint_failed = 103, duplicate = 104,
                             stopped = 105, messages_by = 106, are_you_alive = 107, alive = 108, marked = 109;
inline constexpr MessageType import = 110, imported = 111, release = 112, revoke = 113, revoked = 114, withdraw = 115;
inline constexpr MessageType lookup = 120, found = 121, lookup_cancel = 122;
inline constexpr MessageType bye_ack = 130;
inline constexpr MessageType first_group_message = 200;  // up to 255: of the collective layer

inline constexpr std::size_t max_name = 255;  // published names
inline constexpr std::size_t max_transport_name = 32;
inline constexpr std::size_t max_transports = 32;
inline constexpr std::size_t max_domain = 1024;
inline constexpr std::size_t max_devices = 256;
inline constexpr std::size_t max_device_name = 32;
inline constexpr std::size_t max_address = 16 << 10;    // bytes of an endpoint's address
inline constexpr std::size_t max_exported = 256 << 10;  // bytes of an exported region
inline constexpr std::size_t max_message = 1024;        // text of an error

// Who I am on the data side. The accepting side also names the transport that will carry messages.
struct Hello {
  std::uint16_t version = 0;
  std::uint64_t session = 0;  // differs for each PeerState that the sender ever had for the receiver
  std::string choice;         // empty from the connecting side
  struct TransportDomain {
    std::string name;
    Bytes domain;
  };
  std::vector<TransportDomain> transports;
  std::vector<std::string> devices;
};
Bytes encode(const Hello& m);
std::optional<Hello> decode_hello(ByteSpan in);

// One side's endpoint of a transport; descriptors travel beside it. `attempt` counts from 0 per transport.
struct Address {
  std::string transport;
  std::uint32_t attempt = 0;
  Bytes bytes;
};
Bytes encode(const Address& m);
std::optional<Address> decode_address(ByteSpan in);

// An endpoint can be used (ready), cannot (failed, with the reason), or will carry messages (messages_by).
struct EndpointNote {
  std::string transport;
  std::uint32_t attempt = 0;
  Code code = Code::ok;
  std::string message;
};
Bytes encode(const EndpointNote& m);
std::optional<EndpointNote> decode_endpoint_note(ByteSpan in);

// The sender's endpoint has ended after it was connected: nothing that comes over it is delivered any more.
struct Stopped {
  EndpointNote endpoint;
  std::uint64_t signals = 0;  // received in order from the beginning, by whichever endpoints
  std::uint64_t credit = 0;   // cost of the payload notifications that came with puts over this endpoint
};
Bytes encode(const Stopped& m);
std::optional<Stopped> decode_stopped(ByteSpan in);

struct Import {
  std::uint64_t request = 0;  // the importer's number, never reused on one channel
  std::uint64_t buffer_id = 0;
  std::uint64_t generation = 0;
  std::uint64_t nonce[2] = {0, 0};
  std::uint64_t size = 0;
  Access access = Access::read;
  std::string transport;
};
Bytes encode(const Import& m);
std::optional<Import> decode_import(ByteSpan in);

// Answers Import and Lookup: what was asked for, or why not.
struct Answer {
  std::uint64_t request = 0;
  Code code = Code::ok;
  std::string message;
  Bytes bytes;  // exported region, or serialised descriptor
};
Bytes encode(const Answer& m);
std::optional<Answer> decode_answer(ByteSpan in);

struct Lookup {
  std::uint64_t request = 0;
  std::string name;
};
Bytes encode(const Lookup& m);
std::optional<Lookup> decode_lookup(ByteSpan in);

// release, withdraw (the owner asks for a release) and lookup_cancel name a request.
Bytes encode_request(std::uint64_t request);
std::optional<std::uint64_t> decode_request(ByteSpan in);

// revoke and revoked name a buffer.
struct BufferName {
  std::uint64_t buffer_id = 0;
  std::uint64_t generation = 0;
};
Bytes encode(const BufferName& m);
std::optional<BufferName> decode_buffer_name(ByteSpan in);

}  // namespace hmc::wire
