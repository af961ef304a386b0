// Two processes: one puts a megabyte into the other's memory and raises a notification there.
#include <cstdint>

#include "example.h"

using example::expect;
using example::must;

int main() {
  return example::run_processes(2, [](const hmc::InitOptions& options) {
    const hmc::Communicator comm = must(hmc::Communicator::init(options));
    const hmc::Member me = must(comm.self());

    // Memory that the other process may read and write.
    const std::size_t count = 1 << 18;
    const hmc::ConnBuffer buffer = must(comm.buffer(count * sizeof(std::uint32_t)));
    auto* values = static_cast<std::uint32_t*>(buffer.memory().data());

    // One RemoteBuffer per rank.
    const auto remotes = must(me.exchange(buffer));

    if (me.rank() == 0) {
      for (std::uint32_t i = 0; i < count; ++i) values[i] = i * 2654435761U;
      // Complete::remote (the default): once wait() returns, the bytes are in place over there.
      must(must(me.put(buffer, remotes[1], {.notify = 7})).wait());
    } else {
      // The notification arrives after the bytes that it covers.
      must(me.wait_notify(0, 7));
      for (std::uint32_t i = 0; i < count; ++i) expect(values[i] == i * 2654435761U, "a transferred value");
      const hmc::Path path = must(me.path(0));
      std::printf("1 MiB arrived; the way back is: %s\n", path.str().c_str());
    }
    must(comm.barrier());
  });
}
