// What the tcp transport reads off the wire and out of control messages. The first byte chooses the decoder. What decodes must keep
// its limits and come out of another round of encoding the same.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "round_trip.h"
#include "transport/kit/served_regions.h"
#include "transport/tcp/frames.h"

namespace {

using namespace hmc;
using namespace hmc::tcp;

void check(bool holds) {
  if (!holds) std::abort();
}

void frame(ByteSpan in) {
  Header header;
  if (in.size() < header_bytes || !decode_header(in.data(), header)) return;
  std::array<std::byte, header_bytes> again{};
  encode_header(again.data(), header);
  check(std::equal(again.begin(), again.end(), in.begin()));
  const std::size_t inline_size = inline_bytes(header);
  check(inline_size <= std::max(max_signal_bytes, max_extents * extent_bytes));
  check(header.type == FrameType::signal || header.type == FrameType::put_end || header.length <= max_payload);
  if (header.type != FrameType::put && header.type != FrameType::get) return;
  check(header.extents >= 1 && header.extents <= max_extents && header.length >= 1);
  if (in.size() < header_bytes + inline_size) return;
  std::vector<Extent> extents;
  if (!decode_extents(header, in.subspan(header_bytes, inline_size), extents)) return;
  check(extents.size() == header.extents);
  std::uint64_t total = 0;
  for (const Extent& extent : extents) {
    check(extent.length != 0);
    total += extent.length;
  }
  check(total == header.length);
  // Whatever is inside ends inside.
  constexpr std::uint64_t region = 1 << 20;
  if (!inside(extents, region)) return;
  for (const Extent& extent : extents) check(extent.offset < region && extent.offset + extent.length <= region);
}

void hello(ByteSpan in) {
  Hello first;
  if (in.size() < hello_bytes || !decode_hello(in.data(), first)) return;
  check(first.stream < max_streams);
  std::array<std::byte, hello_bytes> again{};
  encode_hello(again.data(), first);
  check(std::equal(again.begin(), again.end(), in.begin()));
}

void address(ByteSpan in) {
  const auto first = decode_address(in);
  if (!first.ok()) return;
  check(!first->tickets.empty() && first->tickets.size() <= max_streams && first->listens.size() <= max_addresses);
  check(round_trips(in, decode_address, encode_address));
}

void region(ByteSpan in) {
  const auto first = decode_served(in);
  if (first.ok()) check(std::ranges::equal(encode_served(*first), in));
}

void domain(ByteSpan in) {
  const auto first = decode_domain(in);
  if (first.ok()) check(std::ranges::equal(encode_domain(*first), in));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 5) {
    case 0:
      frame(in);
      break;
    case 1:
      hello(in);
      break;
    case 2:
      address(in);
      break;
    case 3:
      region(in);
      break;
    default:
      domain(in);
      break;
  }
  return 0;
}
