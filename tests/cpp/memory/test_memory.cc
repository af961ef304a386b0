#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/fork.h"
#include "device/runtime.h"
#include "hmc/device.h"
#include "hmc/memory.h"
#include "memory/block.h"
#include "testing.h"

namespace hmc {
namespace {

std::span<std::byte> bytes_of(const Memory& memory) { return {static_cast<std::byte*>(memory.data()), memory.size()}; }

TEST(Device, ParsesAndPrints) {
  EXPECT_EQ(Device::parse("cpu")->str(), "cpu");
  EXPECT_TRUE(Device::parse("cpu:0")->is_cpu());
  for (const char* bad : {"", ":", "cpu:", "cpu:x", "cpu:1", "cpu:70000", "CPU", "nosuch:0", "averyveryverylongname:0", "cpu:-1"}) {
    const auto device = Device::parse(bad);
    ASSERT_FALSE(device.ok()) << bad;
    EXPECT_EQ(device.status().code(), Code::invalid_argument);
  }
  EXPECT_NE(Device::parse("cpu:1").status().message().find("the CPU's memory is one device"), std::string_view::npos);
}

TEST(Device, TheCpuIsListedFirst) {
  const auto devices = list_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_TRUE(devices[0].device.is_cpu());
  EXPECT_GT(devices[0].memory_bytes, 0U);
}

TEST(Memory, AllocatesZeroedAlignedAndShareable) {
  for (const std::size_t size : testing::awkward_sizes()) {
    const auto memory = Memory::allocate(size);
    ASSERT_TRUE(memory.ok()) << memory.status().str();
    EXPECT_EQ(memory->size(), size);
    EXPECT_TRUE(memory->shareable());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 4096, 0U);
    for (const std::byte b : bytes_of(*memory)) ASSERT_EQ(b, std::byte{0});
  }
}

TEST(Memory, WrappedPartOfWhatHmcAllocatedIsThatMemory) {
  auto memory = Memory::allocate(100'000);
  ASSERT_TRUE(memory.ok()) << memory.status().str();
  auto* const data = static_cast<std::byte*>(memory->data());
  int ended = 0;
  auto wrapped = Memory::wrap(data + 777, 50'001, [&] { ++ended; });
  ASSERT_TRUE(wrapped.ok()) << wrapped.status().str();
  EXPECT_TRUE(wrapped->shareable());
  EXPECT_EQ(wrapped->data(), data + 777);
  EXPECT_EQ(wrapped->size(), 50'001U);
  EXPECT_EQ(wrapped->block()->span().data, data);
  EXPECT_TRUE(Memory::wrap(data, 100'000)->shareable());
  EXPECT_TRUE(Memory::wrap(data + 99'999, 1)->shareable());
  EXPECT_FALSE(Memory::wrap(data, 100'001, Device::cpu())->shareable());
  EXPECT_FALSE(Memory::wrap(data + 100'000, 1, Device::cpu())->shareable());
  EXPECT_FALSE(Memory::wrap(data - 1, 2, Device::cpu())->shareable());
  EXPECT_FALSE(Memory::wrap(data, 0, Device::cpu())->shareable());
  EXPECT_EQ(ended, 0);
  // It outlives the first handle, and is written through its slice.
  memory->reset();
  auto slice = wrapped->slice(1, 3);
  ASSERT_TRUE(slice.ok());
  wrapped->reset();
  EXPECT_EQ(ended, 0);
  data[778] = std::byte{5};
  EXPECT_EQ(*static_cast<std::byte*>(slice->data()), std::byte{5});
  slice.value() = Memory();
  EXPECT_EQ(ended, 1);
  EXPECT_FALSE(Memory::wrap(&ended, 4, Device::cpu())->shareable());
}

TEST(Memory, ReadOnlyMemoryIsNeverWritten) {
  std::vector<std::byte> bytes(5000);
  testing::fill_pattern(bytes, 3);
  const auto wrapped = Memory::wrap_read_only(bytes.data(), bytes.size(), Device::cpu());
  ASSERT_TRUE(wrapped.ok()) << wrapped.status().str();
  const auto slice = wrapped->slice(7, 100);
  const auto other = Memory::allocate(5000);
  ASSERT_TRUE(slice.ok() && other.ok());
  EXPECT_TRUE(wrapped->read_only() && slice->read_only());
  EXPECT_FALSE(other->read_only() || Memory().read_only());
  EXPECT_EQ(wrapped->fill(0).code(), Code::invalid_argument);
  EXPECT_EQ(slice->fill(0).code(), Code::invalid_argument);
  EXPECT_EQ(wrapped->copy_from(*other).code(), Code::invalid_argument);
  EXPECT_EQ(other->copy_to(*wrapped).code(), Code::invalid_argument);
  EXPECT_EQ(slice->copy_from_host("x", 1).code(), Code::invalid_argument);
  EXPECT_EQ(Memory::wrap_read_only(nullptr, 1, Device::cpu()).status().code(), Code::invalid_argument);
  EXPECT_TRUE(other->copy_from(*wrapped).ok());
  EXPECT_EQ(testing::first_mismatch(bytes_of(*other), 3), -1);
  EXPECT_EQ(testing::first_mismatch(bytes, 3), -1);
}

TEST(Memory, Alignment) {
  for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, std::size_t{65536}, std::size_t{2} << 20}) {
    MemoryOptions options;
    options.alignment = alignment;
    const auto memory = Memory::allocate(5000, Device::cpu(), options);
    ASSERT_TRUE(memory.ok()) << memory.status().str();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % alignment, 0U);
    testing::fill_pattern(bytes_of(*memory), alignment);
    EXPECT_EQ(testing::first_mismatch(bytes_of(*memory), alignment), -1);
  }
  MemoryOptions bad;
  bad.alignment = 48;
  EXPECT_EQ(Memory::allocate(1, Device::cpu(), bad).status().code(), Code::invalid_argument);
}

TEST(Memory, CopiesEveryByteBetweenSlices) {
  for (const std::size_t size : testing::awkward_sizes()) {
    const Memory a = *Memory::allocate(size + 100);
    const Memory b = *Memory::allocate(size + 50);
    testing::fill_pattern(bytes_of(a), size);
    HMC_ASSERT_OK(b.fill(0xAB));
    HMC_ASSERT_OK(b.slice(13, size)->copy_from(*a.slice(0, size)));
    EXPECT_EQ(testing::first_mismatch(bytes_of(*b.slice(13, size)), size), -1);
    for (std::size_t i = 0; i < 13; ++i) ASSERT_EQ(bytes_of(b)[i], std::byte{0xAB});
    for (std::size_t i = 13 + size; i < b.size(); ++i) ASSERT_EQ(bytes_of(b)[i], std::byte{0xAB});
  }
}

TEST(Memory, OverlapIsMemmove) {
  const Memory memory = *Memory::allocate(10000);
  testing::fill_pattern(bytes_of(memory), 5);
  HMC_ASSERT_OK(memory.slice(100, 9000)->copy_from(*memory.slice(0, 9000)));
  EXPECT_EQ(testing::first_mismatch(bytes_of(*memory.slice(100, 9000)), 5), -1);
}

TEST(Memory, RefusesWhatCannotBe) {
  const Memory memory = *Memory::allocate(100);
  EXPECT_EQ(memory.slice(101, 0).status().code(), Code::invalid_argument);
  EXPECT_EQ(memory.slice(50, 51).status().code(), Code::invalid_argument);
  EXPECT_EQ(memory.slice(1, SIZE_MAX).status().code(), Code::invalid_argument);
  EXPECT_EQ(memory.copy_from(*memory.slice(0, 99)).code(), Code::invalid_argument);
  EXPECT_EQ(Memory::wrap(nullptr, 1).status().code(), Code::invalid_argument);
  EXPECT_EQ(Memory::allocate(SIZE_MAX / 2).status().code(), Code::out_of_memory);
}

TEST(Memory, HandlesShareAndTheLastOneFrees) {
  std::vector<std::byte> mine(64);
  int freed = 0;
  {
    Memory memory = *Memory::wrap(mine.data(), mine.size(), [&freed] { ++freed; });
    EXPECT_FALSE(memory.shareable());
    Memory slice = *memory.slice(3, 5);
    memory.reset();
    EXPECT_EQ(freed, 0);
    EXPECT_EQ(slice.data(), mine.data() + 3);
  }
  EXPECT_EQ(freed, 1);
}

TEST(Memory, HostCopies) {
  const Memory memory = *Memory::allocate(1000);
  const auto source = testing::pattern(500, 9);
  HMC_ASSERT_OK(memory.copy_from_host(source.data(), 500, 250));
  std::vector<std::byte> back(500);
  HMC_ASSERT_OK(memory.copy_to_host(back.data(), 500, 250));
  EXPECT_EQ(back, source);
  EXPECT_EQ(memory.copy_to_host(back.data(), 500, 501).code(), Code::invalid_argument);
}

TEST(Memory, CopiesBlocks) {
  const auto source = *Memory::allocate(3000), target = *Memory::allocate(2000);
  for (std::size_t i = 0; i < 3000; ++i) bytes_of(source)[i] = static_cast<std::byte>(i * 7 + i / 256);
  const std::vector<std::uint64_t> from{2667, 0, 1111}, to{5, 1667, 801};
  HMC_ASSERT_OK(target.copy_blocks_from(source, from, to, 333));
  std::vector<std::byte> wanted(2000);
  for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(&wanted[to[i]], &bytes_of(source)[from[i]], 333);
  EXPECT_EQ(std::memcmp(target.data(), wanted.data(), wanted.size()), 0);
  EXPECT_EQ(target.copy_blocks_from(source, from, std::vector<std::uint64_t>{0, 1}, 1).code(), Code::invalid_argument);
  EXPECT_EQ(target.copy_blocks_from(source, from, to, 334).code(), Code::invalid_argument);
  EXPECT_EQ(target.copy_blocks_from(source, to, from, 1).code(), Code::invalid_argument);
  HMC_ASSERT_OK(target.copy_blocks_from(source, from, from, 0));
  HMC_ASSERT_OK(target.copy_blocks_from(source, {}, {}, 333));
  EXPECT_EQ(std::memcmp(target.data(), wanted.data(), wanted.size()), 0);
}

TEST(Memory, SharedHandleMapsTheSameBytesAndIsSealed) {
  const Memory memory = *Memory::allocate(5000);
  testing::fill_pattern(bytes_of(memory), 3);
  const auto blob = memory.block()->export_handle(HandleKind::memfd);
  ASSERT_TRUE(blob.ok()) << blob.status().str();
  EXPECT_EQ(ftruncate(blob->fds[0].get(), 0), -1) << "a peer must not be able to shrink it";
  const auto mapped = (*runtime_for(Device::cpu()))->sharing().import_handle(0, *blob, HandleKind::memfd);
  ASSERT_TRUE(mapped.ok()) << mapped.status().str();
  const auto* bytes = static_cast<std::byte*>((*mapped)->span().data);
  EXPECT_NE(bytes, memory.data());
  EXPECT_EQ(testing::first_mismatch({bytes, 5000}, 3), -1);
}

// Its descriptor is closed there, and the number may be another's.
TEST(Memory, AForkedChildSharesNothingOfItsParents) {
  install_fork_handler();
  const auto memory = Memory::allocate(4096).value();
  const pid_t child = fork();
  if (child == 0) {
    const auto mine = Memory::allocate(4096);
    const bool refused = memory.block()->export_handle(HandleKind::memfd).status().code() == Code::closed;
    _exit(refused && mine.ok() && mine->block()->export_handle(HandleKind::memfd).ok() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(memory.block()->export_handle(HandleKind::memfd).ok());
}

// The child of a thread that forks while another one is at it: nothing there waits for the other's locks.
TEST(Memory, AForkedChildNamesDevicesAndAllocates) {
#ifdef HMC_TEST_SANITIZED
  GTEST_SKIP() << "a sanitizer's own locks are held at a fork, too";
#endif
  install_fork_handler();
  const auto memory = Memory::allocate(1 << 20).value();
  const Device named = Device::parse("cuda:1").value();
  std::atomic<bool> ends{false};
  std::thread busy([&] {
    while (!ends.load()) {
      for (int i = 0; i < 50; ++i) EXPECT_EQ(named.vendor(), "cuda");
      EXPECT_TRUE(Memory::wrap(memory.data(), 100, Device::cpu())->shareable());
    }
  });
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const auto mine = Memory::allocate(1 << 20);
      const bool known = mine.ok() && Memory::wrap(mine->data(), 100, Device::cpu())->shareable();
      _exit(known && Device::parse("rocm:1").ok() && named.str() == "cuda:1" ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  ends.store(true);
  busy.join();
}

TEST(Memory, UnsealedOrShrunkenHandlesAreRefused) {
  MemorySharing& host = (*runtime_for(Device::cpu()))->sharing();
  Blob blob;
  blob.bytes.resize(16);
  const std::uint64_t size = 4096;
  std::memcpy(blob.bytes.data(), &size, sizeof size);
  blob.fds.emplace_back(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(blob.fds[0].get(), 4096), 0);
  EXPECT_EQ(host.import_handle(0, blob, HandleKind::memfd).status().code(), Code::protocol);
  ASSERT_EQ(ftruncate(blob.fds[0].get(), 1024), 0);
  ASSERT_EQ(fcntl(blob.fds[0].get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(host.import_handle(0, blob, HandleKind::memfd).status().code(), Code::protocol);
}

TEST(Memory, HandlesOfNoBytesOrNotToBeWrittenAreRefused) {
  MemorySharing& host = (*runtime_for(Device::cpu()))->sharing();
  Blob blob;
  blob.bytes.resize(16);
  blob.fds.emplace_back(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(blob.fds[0].get(), 4096), 0);
  ASSERT_EQ(fcntl(blob.fds[0].get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE), 0);
  EXPECT_EQ(host.import_handle(0, blob, HandleKind::memfd).status().code(), Code::protocol);
  const std::uint64_t size = 4096;
  std::memcpy(blob.bytes.data(), &size, sizeof size);
  EXPECT_EQ(host.import_handle(0, blob, HandleKind::memfd).status().code(), Code::protocol);
}

TEST(Memory, TinyMemlockSaysWhichLimit) {
#ifdef HMC_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers make mlock a no-op";
#endif
  // In a process of its own: root would have to become nobody, whom the limit concerns.
  const pid_t child = fork();
  if (child == 0) {
    const rlimit tiny{1 << 16, 1 << 16};
    setrlimit(RLIMIT_MEMLOCK, &tiny);
    if (geteuid() == 0 && setuid(65534) != 0) _exit(77);
    MemoryOptions options;
    options.pinned = true;
    const auto refused = Memory::allocate(1 << 20, Device::cpu(), options);
    const auto fits = Memory::allocate(4096, Device::cpu(), options);
    const auto plain = Memory::allocate(1 << 20);
    const std::string_view text = refused.status().message();
    if (refused.ok() || refused.status().code() != Code::out_of_memory) _exit(1);
    if (text.find("memlock") == text.npos || text.find("65536") == text.npos || text.find("ulimit -l") == text.npos) _exit(2);
    _exit(fits.ok() && plain.ok() ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "root that may not become another user";
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Memory, DescriptorLimitSaysSo) {
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit none{0, old.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const auto memory = Memory::allocate(4096);
  setrlimit(RLIMIT_NOFILE, &old);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), Code::out_of_memory);
  EXPECT_NE(memory.status().message().find("ulimit -n"), std::string_view::npos);
}

}  // namespace
}  // namespace hmc
