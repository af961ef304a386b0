// Contexts, pairs of them, and other processes for the tests of comm.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "api_testing.h"

namespace hmc::testing {

inline std::byte* bytes_of(const ConnBuffer& buffer) { return static_cast<std::byte*>(buffer.memory().data()); }
inline std::span<std::byte> span_of(const ConnBuffer& buffer) { return {bytes_of(buffer), buffer.size()}; }

Context make_context(const std::string& transports = "", std::vector<std::string> listen = {}, ContextOptions options = {});

// Transports that connect two Contexts of one host, as this build has them.
std::vector<std::string> peer_transports();

// Two Contexts of this process that know each other.
struct Pair {
  explicit Pair(const std::string& transports = "");
  Context a, b;
  Peer ab;  // b as a sees it
  Peer ba;
};

// This test program again, running the test Role.DISABLED_<name> with `arguments` in HMC_TEST_ROLE. Killed at the latest when the
// object ends.
class Role {
 public:
  Role(const std::string& name, const std::string& arguments, std::vector<std::string> environment = {});
  ~Role();
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;
  void signal(int number) const;
  int wait();               // exit status, or 128 + signal
  std::string read_line();  // from its standard output, without test chatter
  void write_line(const std::string& line) const;
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string buffered_;
};
// In the role: its arguments, and lines to and from the test.
std::string role_arguments();
void tell(const std::string& line);
std::string hear();

int open_descriptors();

}  // namespace hmc::testing
