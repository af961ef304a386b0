// Control messages of comm: the first byte is the type. What decodes must encode to the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "comm/wire/codec.h"
#include "round_trip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hmc;
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  const auto check = [&](auto decode) {
    if (!round_trips(in, decode, [](const auto& m) { return encode(m); })) std::abort();
  };
  switch (data[0]) {
    case wire::hello:
      check(wire::decode_hello);
      break;
    case wire::address:
      check(wire::decode_address);
      break;
    case wire::endpoint_ready:
    case wire::endpoint_failed:
    case wire::messages_by:
      check(wire::decode_endpoint_note);
      break;
    case wire::stopped:
      check(wire::decode_stopped);
      break;
    case wire::import:
      check(wire::decode_import);
      break;
    case wire::imported:
    case wire::found:
      check(wire::decode_answer);
      break;
    case wire::lookup:
      check(wire::decode_lookup);
      break;
    case wire::are_you_alive:
    case wire::alive:
    case wire::release:
    case wire::lookup_cancel:
      if (!round_trips(in, wire::decode_request, wire::encode_request)) std::abort();
      break;
    case wire::revoke:
    case wire::revoked:
      check(wire::decode_buffer_name);
      break;
    default:
      break;
  }
  return 0;
}
