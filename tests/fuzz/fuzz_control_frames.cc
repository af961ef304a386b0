// What control reads off the wire: hello, frame header, identity, refusal, and the text of a job key. The first byte chooses.
// What decodes must keep its bounds and survive another round of encoding and decoding.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "control/key.h"
#include "control/records.h"

namespace {

using namespace hmc;
using namespace hmc::control;

void check(bool holds) {
  if (!holds) std::abort();
}

void hello(ByteSpan in) {
  std::size_t used = 0;
  const auto first = decode_hello(in, used);
  if (!first.ok() || !first.value()) return;
  check(used >= 8 && used <= 2 + max_hello_body && used <= in.size());
  const Bytes again = encode_hello(*first.value());
  const auto second = decode_hello(again, used);
  check(second.ok() && second.value().has_value() && used == again.size());
  check(second.value()->version == first.value()->version && second.value()->kind == first.value()->kind);
  check(second.value()->detail == first.value()->detail && second.value()->text == first.value()->text);
}

void header(ByteSpan in) {
  if (in.size() < frame_header_bytes) return;
  const auto decoded = decode_frame_header(in, max_control_payload);
  if (!decoded.ok()) return;
  check(decoded->length <= max_control_payload && decoded->fds <= max_control_fds && decoded->type != 0);
  const auto again = encode_frame_header(decoded.value());
  check(std::equal(again.begin(), again.end(), in.begin()));
}

void identity(ByteSpan in) {
  const auto first = decode_identity(in);
  if (!first.ok()) return;
  check(first->name.size() <= max_name && first->heartbeat_seconds >= 0.1 && first->heartbeat_seconds <= 3600);
  const auto second = decode_identity(encode_identity(first.value()));
  check(second.ok() && second->name == first->name && second->context_id == first->context_id && second->epoch == first->epoch);
  check(second->proof == first->proof && second->ticket == first->ticket && second->move_address == first->move_address);
}

void refusal(ByteSpan in) {
  const Status first = decode_refusal(in);
  check(!first.ok() && first.message().size() <= 1024);
  for (const char c : first.message()) check(c >= ' ' && c <= '~');
  const Status second = decode_refusal(encode_refusal(first));
  check(second.code() == first.code() && second.message() == first.message());
}

void key(ByteSpan in) {
  const std::string_view text(reinterpret_cast<const char*>(in.data()), in.size());
  const auto result = PresharedKey::from_text(text);
  check(result.ok() || result.status().code() == Code::invalid_argument);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 5) {
    case 0:
      hello(in);
      break;
    case 1:
      header(in);
      break;
    case 2:
      identity(in);
      break;
    case 3:
      refusal(in);
      break;
    default:
      key(in);
      break;
  }
  return 0;
}
