// The host has no memory for more of a shared ring, for a while: messages wait, and none is lost with what belongs to it.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "ways.h"

namespace {
std::atomic<bool> memory_is_short{false};
}  // namespace

// Instead of the C library's, whose errors nothing else brings about at will.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (!memory_is_short) return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
  errno = ENOSPC;
  return -1;
}

namespace hmc {
namespace {

using namespace testing;

// Of more bytes than go through the ring, so that each takes several signals of both sides.
TEST(RingMemory, MessagesWaitForIt) {
  const auto ways = all_ways();
  if (std::ranges::find(ways, "shm") == ways.end()) GTEST_SKIP() << "without shm";
  constexpr std::size_t count = 2000, bytes = 70'001, first = 10;  // records of 64 bytes: far more than the first 64 KiB hold
  std::vector<std::byte> in(bytes), out;
  const WayPair pair("shm");
  std::size_t sent = 0;
  const auto exchange = [&](std::size_t upto, double seconds) {
    for (; sent < upto; ++sent) {
      out = pattern(bytes, sent);
      const auto received = *pair.ba.irecv(view(in), 1);
      const auto work = *pair.ab.isend(view(out), 1);
      if (memory_is_short && received.wait(soon(seconds)).code() == Code::timeout) {
        memory_is_short = false;
        EXPECT_LT(sent, count - 1);
      }
      HMC_ASSERT_OK(received.wait(soon()));
      HMC_ASSERT_OK(work.wait(soon()));
      ASSERT_EQ(first_mismatch(in, sent), -1) << sent;
    }
  };
  exchange(first, 30);
  memory_is_short = true;
  exchange(count, 1);
  EXPECT_FALSE(memory_is_short.exchange(false)) << "the ring never needed memory";
}

}  // namespace
}  // namespace hmc
