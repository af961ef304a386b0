// Signals while shared memory takes its pages, as a profiler's timer sends them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "testing.h"
#include "transport/shared_pages.h"

namespace {

thread_local bool interrupts = false;
thread_local int interrupted = 0;

}  // namespace

// The system's call, with a signal in every long one, whose pages some kernels take back then. It gives up in the end.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length);
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (interrupts && length > (off_t{16} << 20)) {
    errno = ++interrupted < 1000 ? EINTR : EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, length));
}

namespace hmc {
namespace {

TEST(SharedPages, SignalsDoNotEndAReservation) {
  constexpr std::size_t page = 4096, bytes = (std::size_t{24} << 20) + page;
  const auto pages = SharedPages::create("hmc-test", 2 * page + bytes);
  HMC_ASSERT_OK(pages.status());
  interrupts = true;
  interrupted = 0;
  const Status reserved = pages->reserve(page, bytes);
  interrupts = false;
  HMC_ASSERT_OK(reserved);
  EXPECT_EQ(interrupted, 1) << "the library calls another fallocate()";
  struct stat info{};
  ASSERT_EQ(fstat(pages->fd().get(), &info), 0);
  EXPECT_EQ(static_cast<std::size_t>(info.st_blocks) * 512, bytes);
}

}  // namespace
}  // namespace hmc
