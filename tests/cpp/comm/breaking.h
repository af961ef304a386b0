// Connections that break while both processes live: real sockets that are shut down, and a transport of the tests' own that is
// faster than tcp and can be kept from connecting.
#pragma once

#include <atomic>
#include <string>

namespace hmc::testing {

// Shuts down every TCP connection of this process; returns how many. Contexts of the tests meet on Unix sockets, so these are the
// data connections.
int cut_data_connections();

// "swift": tcp by another name, and said to be a hundred times as fast. Known to Contexts once this was called.
void add_swift_transport();
// While set, its connections cannot be made.
extern std::atomic<bool> swift_refuses;
// As many of its ends as this cannot be made, then they can.
extern std::atomic<int> swift_refusals;
// As many of its ends as this are made, then no more (negative: no limit).
extern std::atomic<int> swift_ends_left;
// While set, the next Context does not use it: the two sides of a connection then disagree about the best transport.
extern std::atomic<bool> swift_hides;

}  // namespace hmc::testing
