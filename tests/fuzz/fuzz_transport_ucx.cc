// What the ucx transport reads out of control messages and in front of signals. The first byte chooses the decoder. What decodes
// must keep its limits and come out of another round of encoding the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>

#include "transport/ucx/wire.h"

namespace {

using namespace hmc;
using namespace hmc::ucx;

void check(bool holds) {
  if (!holds) std::abort();
}

void domain(ByteSpan in) {
  const auto first = decode_domain(in);
  if (first.ok()) check(std::ranges::equal(encode_domain(*first), in) && in.size() <= 1024);
}

void address(ByteSpan in) {
  const auto first = decode_address(in);
  if (!first.ok()) return;
  check(!first->worker.empty() && first->worker.size() <= max_worker_address);
  check(std::ranges::equal(encode_address(*first), in));
}

void region(ByteSpan in) {
  const auto first = decode_region(in);
  if (!first.ok()) return;
  check(first->key.size() <= max_key && (first->key.empty() || first->bytes != 0));
  check(first->bytes <= std::numeric_limits<std::uint64_t>::max() - first->address);
  check(std::ranges::equal(encode_region(*first), in));
}

void head(ByteSpan in) {
  MessageHead first;
  if (!decode_head(in, first)) return;
  std::array<std::byte, head_bytes> again{};
  check(std::ranges::equal(std::span(again).first(encode_head(first, again)), in));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 4) {
    case 0:
      domain(in);
      break;
    case 1:
      address(in);
      break;
    case 2:
      region(in);
      break;
    default:
      head(in);
      break;
  }
  return 0;
}
