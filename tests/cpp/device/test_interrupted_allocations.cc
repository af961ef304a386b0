// Signals while host memory is allocated, as a profiler's timer sends them.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "device/runtime.h"
#include "testing.h"

namespace {

thread_local bool interrupts = false;
thread_local int interrupted = 0;

}  // namespace

// The system's call, with a signal in every other one and in every long one, whose pages some kernels take back then.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length);
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (interrupts && (length > (off_t{16} << 20) || interrupted % 2 == 0)) {
    if (++interrupted < 1000) {
      errno = EINTR;
      return -1;
    }
  }
  interrupted += interrupts ? 1 : 0;
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, length));
}

namespace hmc {
namespace {

TEST(HostMemory, SignalsDoNotEndAnAllocation) {
  constexpr std::size_t bytes = (std::size_t{48} << 20) + 5;
  interrupts = true;
  interrupted = 0;
  auto made = device_runtimes().front()->instance().allocate(0, bytes, {});
  interrupts = false;
  HMC_ASSERT_OK(made.status());
  EXPECT_TRUE((*made)->shareable());
  EXPECT_GE(interrupted, 2) << "the library calls another fallocate()";
  EXPECT_LT(interrupted, 1000);
}

}  // namespace
}  // namespace hmc
