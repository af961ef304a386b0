// What the verbs transport reads out of control messages and off the wire. The first byte chooses the decoder. What decodes must
// keep its limits and come out of another round of encoding the same.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>

#include "transport/verbs/signal_heads.h"
#include "transport/verbs/wire.h"

namespace {

using namespace hmc;
using namespace hmc::verbs;

void check(bool holds) {
  if (!holds) std::abort();
}

void check_port(const PortInfo& port) { check(port.nic < max_nics && port.mtu >= 1 && port.mtu <= 5); }

void check_rail(const RailAddress& rail) {
  check_port(rail.port);
  check(std::max({rail.outbound, rail.inbound, rail.sequence}) <= number_mask);
}

void domain(ByteSpan in) {
  const auto first = decode_domain(in);
  if (!first.ok()) return;
  check(first->ports.size() <= max_nics);
  for (const PortInfo& port : first->ports) check_port(port);
  const Bytes again = encode_domain(*first);
  check(std::ranges::equal(again, in) && again.size() <= 1024);
}

void address(ByteSpan in) {
  const auto first = decode_address(in);
  if (!first.ok()) return;
  check(!first->rails.empty() && first->rails.size() <= max_rails);
  for (const RailAddress& rail : first->rails) check_rail(rail);
  check(std::ranges::equal(encode_address(*first), in));
}

void region(ByteSpan in) {
  const auto first = decode_region(in);
  if (!first.ok()) return;
  check(first->keys.size() <= max_nics && first->bytes <= std::numeric_limits<std::uint64_t>::max() - first->address);
  check(std::ranges::equal(encode_region(*first), in));
}

void head(ByteSpan in) {
  MessageHead first;
  if (!decode_head(in, first)) return;
  std::array<std::byte, head_bytes> again{};
  encode_head(again.data(), first);
  check(std::equal(again.begin(), again.end(), in.begin()));
  const bool with_body = counts_as_signal(first.kind) || first.kind == MessageKind::rail_up;
  const bool of_rail = first.kind == MessageKind::rail_down || first.kind == MessageKind::rail_up;
  check(with_body || in.size() == head_bytes);
  check(of_rail ? first.rail < max_rails : first.rail == 0 && first.life == 0);
}

void offer(ByteSpan in) {
  const auto first = decode_offer(in);
  if (!first.ok()) return;
  check_rail(first->address);
  check(std::ranges::equal(encode_offer(*first), in));
}

// The first byte: how many heads are told, each with its size in front. The rest are immediates.
void heads(ByteSpan in) {
  SignalHeads known;
  unsigned left = in.empty() ? 0 : std::to_integer<unsigned>(in[0]);
  std::size_t at = 1, count = 0;
  for (; left != 0 && at < in.size(); --left) {
    const std::size_t bytes = std::min<std::size_t>(std::to_integer<std::size_t>(in[at]), in.size() - at - 1);
    const ByteSpan head = in.subspan(at + 1, bytes);
    const auto place = known.add(head);
    check(place.has_value() == (bytes != 0 && bytes <= max_signal_head && count < SignalHeads::capacity));
    if (place) check(*place == count++ && known.find(head).has_value());
    at += bytes + 1;
  }
  for (; at + 4 <= in.size(); at += 4) {
    std::uint32_t immediate = 0;
    std::memcpy(&immediate, in.data() + at, sizeof immediate);
    const ByteSpan expanded = known.expand(immediate);
    const Bytes signal(expanded.begin(), expanded.end());
    check(signal.empty() == ((immediate >> 24) >= count));
    if (signal.empty()) continue;
    const auto parts = split_signal(signal);
    check(parts.has_value() && parts->number == (immediate & 0xFFFFFF));
    check(std::ranges::equal(known.expand(SignalHeads::immediate(*known.find(parts->head), parts->number)), signal));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 6) {
    case 0:
      domain(in);
      break;
    case 1:
      address(in);
      break;
    case 2:
      region(in);
      break;
    case 3:
      head(in);
      break;
    case 4:
      offer(in);
      break;
    default:
      heads(in);
      break;
  }
  return 0;
}
