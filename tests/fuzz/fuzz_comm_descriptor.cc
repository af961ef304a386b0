// Buffer descriptors, which travel by any means. What parses must serialise to the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "hmc/buffer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  const auto descriptor = hmc::Descriptor::parse(in);
  if (descriptor.ok() && !std::ranges::equal(descriptor->serialise(), in)) std::abort();
  return 0;
}
