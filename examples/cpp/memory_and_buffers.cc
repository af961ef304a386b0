// Memory and its registration, in one process: allocate, slice, copy, wrap, register, describe.
#include <cstring>
#include <vector>

#include "example.h"

using example::expect;
using example::must;

int main() {
  for (const hmc::DeviceInfo& info : hmc::list_devices()) std::printf("%s: %s\n", info.device.str().c_str(), info.name.c_str());

  // Zero-filled; lives until its last handle is gone. Slices share the bytes.
  const hmc::Memory memory = must(hmc::Memory::allocate(1 << 16));
  const hmc::Memory middle = must(memory.slice(1000, 24));
  must(middle.fill(0x2a));
  const char text[] = "two memories";
  must(middle.copy_from_host(text, sizeof text, 3));
  std::vector<char> back(24);
  must(middle.copy_to_host(back.data(), back.size()));
  expect(std::strcmp(back.data() + 3, text) == 0 && back[0] == 0x2a, "what was written");
  expect(!memory.slice(1 << 16, 1).ok(), "a slice beyond the end is refused");

  // Memory of one's own, in place.
  std::vector<char> own(24, '.');
  must(must(hmc::Memory::wrap(own.data(), own.size())).copy_from(middle));
  expect(own == back, "the copy");

  // Registered, it can be described to others, who import it by the description.
  const hmc::Context context = must(hmc::Context::create());
  const hmc::ConnBuffer buffer = must(context.register_memory(memory));
  const std::vector<std::byte> bytes = must(buffer.descriptor()).serialise();
  const hmc::Descriptor described = must(hmc::Descriptor::parse(bytes));
  expect(described.size == memory.size() && described.device == "cpu", "the description");
  must(buffer.close());  // nothing lands in it after this
  expect(buffer.closed() && !buffer.descriptor().ok(), "a closed buffer has no description");
  must(context.close());
  return 0;
}
