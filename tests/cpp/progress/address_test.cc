#include "progress/listener.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <string_view>

#include "progress/address.h"

namespace hmc {
namespace {

// How a connection request ends: a refusal may come after start_connect() has returned.
Status connecting_to(const char* address) {
  const auto fd = start_connect(address);
  if (!fd.ok()) return fd.status();
  pollfd state{fd->get(), POLLOUT, 0};
  EXPECT_EQ(poll(&state, 1, 60'000), 1) << address;
  return connect_outcome(fd->get(), address);
}

TEST(Address, MalformedOnesAreNamed) {
  for (const char* address : {"", "unix", "unix:", "unix:relative", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:",
                              "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1", "tcp://127.0.0.1:http", "tcp://::1:80",
                              "tcp://[::1:80", "tcp://[127.0.0.1]:80", "http://127.0.0.1:80", "tcp://:80", "127.0.0.1:80"}) {
    const auto fd = start_connect(address);
    EXPECT_EQ(fd.status().code(), Code::invalid_argument) << address << ": " << fd.status().str();
  }
  EXPECT_EQ(start_connect("unix:/" + std::string(200, 'x')).status().code(), Code::invalid_argument);
  EXPECT_EQ(start_connect(std::string_view("unix:/a\0b", 9)).status().code(), Code::invalid_argument);
  EXPECT_EQ(start_connect("unix:/nonexistent/hmc.sock").status().code(), Code::peer_lost);
  EXPECT_EQ(connecting_to("tcp://127.0.0.1:1").code(), Code::peer_lost);
}

TEST(Address, LocalMeansUnixAndLoopback) {
  for (const char* address : {"unix", "unix:/tmp/x", "tcp://127.0.0.1:1", "tcp://127.8.9.10:1", "tcp://[::1]:1",
                              "tcp://localhost:1", "tcp://[::ffff:127.0.0.1]:1"}) {
    EXPECT_TRUE(is_local_address(address)) << address;
  }
  for (const char* address :
       {"tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://:1", "tcp://192.0.2.1:1", "tcp://[2001:db8::1]:1", "nonsense", ""}) {
    EXPECT_FALSE(is_local_address(address)) << address;
  }
}

}  // namespace
}  // namespace hmc
