// What every device runtime promises, over the generated table: a new vendor is tested without editing this file.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "device/runtime.h"
#include "testing.h"

namespace hmc {
namespace {

class Flag final : public Completion {
 public:
  void complete(Status status) noexcept override {
    outcome = std::move(status);
    count.fetch_add(1);
  }
  Status outcome;
  std::atomic<int> count{0};
};

class RuntimeConformance : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {
 protected:
  void SetUp() override {
    runtime_ = &GetParam()->instance();
    info_ = runtime_->enumerate();
    if (!info_.available) GTEST_SKIP() << info_.vendor << " is not available: " << info_.reason;
    device_ = info_.devices.at(0).device;
  }
  std::unique_ptr<Allocation> allocate(std::size_t bytes) {
    auto allocation = runtime_->allocate(device_.index(), bytes, {});
    EXPECT_TRUE(allocation.ok()) << allocation.status().str();
    return allocation.ok() ? std::move(allocation).value() : nullptr;
  }
  Status copy(const DeviceSpan& target, const DeviceSpan& source) {
    Flag done;
    HMC_TRY(runtime_->copy({.target = target, .source = source}, &done));
    while (done.count.load() == 0) {
      if (!runtime_->poll()) std::this_thread::yield();
    }
    EXPECT_EQ(done.count.load(), 1);
    return done.outcome;
  }
  static DeviceSpan part(const DeviceSpan& span, std::size_t offset, std::size_t bytes) {
    return {static_cast<std::byte*>(span.data) + offset, bytes, span.device};
  }

  DeviceRuntime* runtime_ = nullptr;
  RuntimeInfo info_;
  Device device_;
};

TEST_P(RuntimeConformance, SaysWhatItIs) {
  EXPECT_EQ(info_.vendor, GetParam()->vendor);
  EXPECT_FALSE(info_.reason.empty());
  for (const auto& device : info_.devices) {
    EXPECT_EQ(device.device.vendor(), info_.vendor);
    EXPECT_FALSE(device.name.empty());
    EXPECT_TRUE(device.provenance == "hardware" || device.provenance == "simulated" || device.provenance == "facade");
  }
}

TEST_P(RuntimeConformance, CopiesBothWaysEveryByte) {
  for (const std::size_t size : testing::awkward_sizes()) {
    if (size == 0) continue;
    const auto memory = allocate(size + 64);
    ASSERT_NE(memory, nullptr);
    auto source = testing::pattern(size, size);
    HMC_ASSERT_OK(copy(part(memory->span(), 17, size), {source.data(), size, Device::cpu()}));
    std::vector<std::byte> back(size);
    HMC_ASSERT_OK(copy({back.data(), size, Device::cpu()}, part(memory->span(), 17, size)));
    ASSERT_EQ(back, source) << size;
  }
}

TEST_P(RuntimeConformance, CopiesOnTheDevice) {
  const auto a = allocate(100'003);
  const auto b = allocate(100'003);
  ASSERT_TRUE(a && b);
  auto source = testing::pattern(100'003, 4);
  HMC_ASSERT_OK(copy(a->span(), {source.data(), source.size(), Device::cpu()}));
  HMC_ASSERT_OK(copy(part(b->span(), 3, 100'000), part(a->span(), 1, 100'000)));
  std::vector<std::byte> back(100'000);
  HMC_ASSERT_OK(copy({back.data(), back.size(), Device::cpu()}, part(b->span(), 3, 100'000)));
  EXPECT_TRUE(std::equal(back.begin(), back.end(), source.begin() + 1));
}

TEST_P(RuntimeConformance, Fills) {
  const auto memory = allocate(5000);
  ASSERT_NE(memory, nullptr);
  HMC_ASSERT_OK(runtime_->compute().fill(memory->span(), 0x11));
  HMC_ASSERT_OK(runtime_->compute().fill(part(memory->span(), 1001, 2000), 0xC3));
  std::vector<std::byte> back(5000);
  HMC_ASSERT_OK(copy({back.data(), back.size(), Device::cpu()}, memory->span()));
  for (std::size_t i = 0; i < back.size(); ++i) ASSERT_EQ(back[i], i >= 1001 && i < 3001 ? std::byte{0xC3} : std::byte{0x11}) << i;
}

TEST_P(RuntimeConformance, KnowsItsOwnPointers) {
  const auto memory = allocate(8192);
  ASSERT_NE(memory, nullptr);
  const auto info = runtime_->classify(static_cast<std::byte*>(memory->span().data) + 100, 10);
  ASSERT_TRUE(info.ok() && info->has_value());
  EXPECT_EQ((*info)->device, device_);
  const auto found = classify_pointer(memory->span().data, 8192);
  HMC_ASSERT_OK(found.status());
  EXPECT_EQ(found->device, device_);
  int local = 0;
  EXPECT_TRUE(classify_pointer(&local, sizeof local).value().device.is_cpu());
  // Any address may be asked about; none is touched.
  static_cast<void>(runtime_->classify(reinterpret_cast<const void*>(0x10), 1));
}

TEST_P(RuntimeConformance, HugeAllocationIsRefusedAndTheNextWorks) {
  const auto refused = runtime_->allocate(device_.index(), std::size_t{1} << 50, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::out_of_memory);
  EXPECT_NE(allocate(4096), nullptr);
}

TEST_P(RuntimeConformance, CopyBlockingBetweenHostAndDevice) {
  const auto memory = allocate(70'001);
  ASSERT_NE(memory, nullptr);
  auto source = testing::pattern(70'001, 8);
  HMC_ASSERT_OK(copy_blocking(memory->span(), {source.data(), source.size(), Device::cpu()}));
  std::vector<std::byte> back(70'001);
  HMC_ASSERT_OK(copy_blocking({back.data(), back.size(), Device::cpu()}, memory->span()));
  EXPECT_EQ(back, source);
  EXPECT_EQ(copy_blocking(memory->span(), {source.data(), 5, Device::cpu()}).code(), Code::invalid_argument);
}

TEST_P(RuntimeConformance, FromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned round = 0; round < 20; ++round) {
        const auto memory = allocate(10'000 + t);
        auto source = testing::pattern(10'000 + t, t * 100 + round);
        std::vector<std::byte> back(source.size());
        if (!memory || !copy(memory->span(), {source.data(), source.size(), Device::cpu()}).ok()) return;
        if (!copy({back.data(), back.size(), Device::cpu()}, memory->span()).ok() || back != source) return;
        good.fetch_add(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 80);
}

// Standard error, in a file instead.
class ErrorOutput {
 public:
  ErrorOutput() { dup2(file_, STDERR_FILENO); }
  ~ErrorOutput() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(file_);
  }
  ErrorOutput(const ErrorOutput&) = delete;
  ErrorOutput& operator=(const ErrorOutput&) = delete;
  [[nodiscard]] std::string text() const {
    std::string all(65536, '\0');
    const ssize_t count = pread(file_, all.data(), all.size(), 0);
    return all.substr(0, count > 0 ? static_cast<std::size_t>(count) : 0);
  }

 private:
  const int before_ = dup(STDERR_FILENO), file_ = memfd_create("stderr", MFD_CLOEXEC);
};

// A program that loads a kernel meanwhile would wait for ever.
TEST(HeldStream, IsReportedAfterAWhile) {
  const auto device = Device::parse("cuda:0");
  HMC_ASSERT_OK(device.status());
  const auto runtime = runtime_for(*device);
  HMC_ASSERT_OK(runtime.status());
  const auto gate = std::make_shared<StreamGate>();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string said;
  {
    const ErrorOutput output;
    if (!(*runtime)->streams().hold(0, default_stream, gate).ok()) GTEST_SKIP() << "no device of CUDA";
    while (said.find("CUDA_MODULE_LOADING") == std::string::npos && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      said = output.text();
    }
    gate->open();
  }
  EXPECT_NE(said.find("a stream of cuda:0 has waited for the host for 5 s"), std::string::npos) << said;
}

std::vector<const DeviceRuntimeFactory*> all_runtimes() {
  const auto table = device_runtimes();
  return {table.begin(), table.end()};
}
INSTANTIATE_TEST_SUITE_P(Runtimes, RuntimeConformance, ::testing::ValuesIn(all_runtimes()),
                         [](const auto& row) { return std::string(row.param->vendor); });

}  // namespace
}  // namespace hmc
