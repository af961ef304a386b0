// Handles of device memory for others than the vendor: dma-bufs, and memory that was mapped in pieces. Where no card is, simulated
// vendors keep the promises: their dma-buf is a file, positioned where the memory begins.
#include <fcntl.h>
#include <unistd.h>

#include "base/wire.h"
#include "device/runtime.h"
#include "testing.h"

namespace hmc {
namespace {

class Handles : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {
 protected:
  static constexpr std::size_t size = 70'003;

  void SetUp() override {
    runtime_ = &GetParam()->instance();
    const RuntimeInfo info = runtime_->enumerate();
    if (!info.available) GTEST_SKIP() << info.vendor << " is not available: " << info.reason;
    if (info.vendor == "cpu") GTEST_SKIP() << "CPU memory is no device's";
    simulated_ = info.devices.at(0).provenance == "simulated";
    auto made = runtime_->allocate(0, size, {});
    ASSERT_TRUE(made.ok()) << made.status().str();
    memory_ = std::move(*made);
  }
  [[nodiscard]] DeviceSpan part(std::size_t offset, std::size_t bytes) const {
    return {static_cast<std::byte*>(memory_->span().data) + offset, bytes, memory_->span().device};
  }

  DeviceRuntime* runtime_ = nullptr;
  bool simulated_ = false;
  std::unique_ptr<Allocation> memory_;
};

TEST_P(Handles, ADmaBufShowsTheBytes) {
  const auto data = testing::pattern(size, 7);
  HMC_ASSERT_OK(copy_blocking(memory_->span(), {const_cast<std::byte*>(data.data()), size, Device::cpu()}));
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{12'345}}) {
    const std::size_t bytes = size - offset - 3;
    const auto blob = runtime_->sharing().export_handle(part(offset, bytes), HandleKind::dma_buf);
    if (!blob.ok()) {
      EXPECT_EQ(blob.status().code(), Code::unsupported) << blob.status().str();
      EXPECT_NE(blob.status().message().find(GetParam()->vendor), std::string_view::npos);
      GTEST_SKIP() << blob.status().str();
    }
    WireReader reader(blob->bytes);
    const std::uint64_t start = reader.u64();
    EXPECT_EQ(reader.u64(), bytes);
    ASSERT_TRUE(reader.finish());
    ASSERT_EQ(blob->fds.size(), 1U);
    if (!simulated_) continue;  // a real one is for a driver to map
    const int fd = blob->fds[0].get();
    const off_t begin = lseek(fd, 0, SEEK_CUR);
    std::vector<std::byte> seen(bytes);
    ASSERT_EQ(pread(fd, seen.data(), bytes, begin + static_cast<off_t>(start)), static_cast<ssize_t>(bytes));
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), data.begin() + static_cast<std::ptrdiff_t>(offset))) << offset;
  }
}

TEST_P(Handles, MemoryOfOnePieceHasNoDescriptorsOfPieces) {
  const auto blob = runtime_->sharing().export_handle(memory_->span(), HandleKind::chunks);
  ASSERT_FALSE(blob.ok());
  EXPECT_TRUE(blob.status().code() == Code::unsupported || blob.status().code() == Code::device) << blob.status().str();
  EXPECT_FALSE(runtime_->sharing().export_handle(memory_->span(), HandleKind::memfd).ok());
}

TEST_P(Handles, DescriptionsOfPiecesAreChecked) {
  const auto refused = [&](const auto& write, std::size_t fds, Code expected) {
    Blob blob;
    WireWriter writer(blob.bytes);
    write(writer);
    for (std::size_t i = 0; i < fds; ++i) blob.fds.emplace_back(open("/dev/null", O_RDWR | O_CLOEXEC));
    const auto mapped = runtime_->sharing().import_handle(0, blob, HandleKind::chunks);
    ASSERT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.status().code(), expected) << mapped.status().str();
  };
  constexpr std::uint64_t piece = 2 << 20;
  refused([](WireWriter&) {}, 0, Code::protocol);
  refused([](WireWriter& w) { w.u64(0).u64(1).u32(0); }, 0, Code::protocol);
  refused([](WireWriter& w) { w.u64(0).u64(1).u32(1).u64(0); }, 1, Code::protocol);
  refused([](WireWriter& w) { w.u64(1).u64(piece).u32(1).u64(piece); }, 1, Code::protocol);
  refused([](WireWriter& w) { w.u64(piece + 1).u64(0).u32(1).u64(piece); }, 1, Code::protocol);
  refused([](WireWriter& w) { w.u64(0).u64(9).u32(2).u64(~0ULL).u64(~0ULL); }, 2, Code::protocol);
  refused([](WireWriter& w) { w.u64(0).u64(9).u32(1000000).u64(piece); }, 1, Code::protocol);
  refused([](WireWriter& w) { w.u64(0).u64(9).u32(1).u64(piece).u8(1); }, 1, Code::protocol);
  refused([](WireWriter& w) { w.u64(0).u64(9).u32(1).u64(piece); }, 0, Code::unsupported);  // lost at a descriptor limit
}

std::vector<const DeviceRuntimeFactory*> all_runtimes() {
  const auto table = device_runtimes();
  return {table.begin(), table.end()};
}
INSTANTIATE_TEST_SUITE_P(Runtimes, Handles, ::testing::ValuesIn(all_runtimes()),
                         [](const auto& row) { return std::string(row.param->vendor); });

}  // namespace
}  // namespace hmc
