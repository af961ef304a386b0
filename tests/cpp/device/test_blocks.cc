// Scattered blocks on every device runtime: one kernel where it has ours, else one copy each.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <thread>

#include "device/runtime.h"
#include "hmc/row_copies.h"
#include "testing.h"

namespace hmc {
namespace {

class Flag final : public Completion {
 public:
  void complete(Status status) noexcept override {
    outcome = std::move(status);
    done.store(true);
  }
  Status outcome;
  std::atomic<bool> done{false};
};

class Blocks : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {
 protected:
  void SetUp() override {
    runtime_ = &GetParam()->instance();
    info_ = runtime_->enumerate();
    if (!info_.available) GTEST_SKIP() << info_.vendor << " is not available: " << info_.reason;
  }
  Status copy(const CopyOp& op) {
    Flag flag;
    HMC_TRY(runtime_->copy(op, &flag));
    while (!flag.done.load()) {
      if (!runtime_->poll()) std::this_thread::yield();
    }
    return flag.outcome;
  }
  // Blocks at gaps that are themselves scattered, in another order on each side; what lies between stays as it is.
  void round(std::size_t count, std::size_t block, std::size_t align, unsigned seed) {
    const std::size_t room = (block + align) * count + align;
    const auto source = runtime_->allocate(0, room, {});
    const auto target = runtime_->allocate(0, room, {});
    ASSERT_TRUE(source.ok() && target.ok());
    auto data = testing::pattern(room, seed);
    const auto before = testing::pattern(room, seed + 1);
    HMC_ASSERT_OK(copy({.target = source.value()->span(), .source = {data.data(), room, Device::cpu()}}));
    auto scratch = before;
    HMC_ASSERT_OK(copy({.target = target.value()->span(), .source = {scratch.data(), room, Device::cpu()}}));
    std::vector<std::uint64_t> to(count), from(count);
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i] = align + i * (block + align);
    std::mt19937 random(seed);
    std::shuffle(to.begin(), to.end(), random);
    std::shuffle(from.begin(), from.end(), random);
    auto expected = before;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(expected.data() + to[i], data.data() + from[i], block);
    CopyOp op{.target = target.value()->span(), .source = source.value()->span()};
    op.target_offsets = to.data();
    op.source_offsets = from.data();
    op.blocks = count;
    op.block_bytes = block;
    HMC_ASSERT_OK(copy(op));
    std::vector<std::byte> back(room);
    HMC_ASSERT_OK(copy({.target = {back.data(), room, Device::cpu()}, .source = target.value()->span()}));
    ASSERT_TRUE(back == expected) << count << " blocks of " << block;
  }
  // How many kernels a simulated library has run; -1: it is not simulated or runs none.
  long long launches() const {
    std::string vendor(info_.vendor);
    std::ranges::transform(vendor, vendor.begin(), [](char c) { return static_cast<char>(std::toupper(c)); });
    const char* path = std::getenv(("HMC_" + vendor + "_LIBRARY").c_str());
    void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void* symbol = library == nullptr ? nullptr : dlsym(library, "hmcsim_launches");
    return symbol == nullptr ? -1 : static_cast<long long>(reinterpret_cast<std::uint64_t (*)()>(symbol)());
  }
  bool has_kernel() const {
    const auto& names = info_.devices.at(0).capabilities;
    return std::ranges::find(names, "block kernel") != names.end();
  }

  DeviceRuntime* runtime_ = nullptr;
  RuntimeInfo info_;
};

// Rows of two allocations, in any order.
TEST_P(Blocks, RowsInDifferentPlaces) {
  constexpr std::size_t rows = 40, bytes = 52, gap = 12, room = rows * (bytes + gap);
  const Device device = info_.devices.at(0).device;
  const auto even = runtime_->allocate(0, room, {}), odd = runtime_->allocate(0, room, {}),
             target = runtime_->allocate(0, room, {});
  ASSERT_TRUE(even.ok() && odd.ok() && target.ok());
  auto here_even = testing::pattern(room, 3), here_odd = testing::pattern(room, 4), expected = testing::pattern(room, 5);
  for (const auto& [memory, from] : {std::pair(&even, &here_even), std::pair(&odd, &here_odd), std::pair(&target, &expected)})
    HMC_ASSERT_OK(copy({.target = memory->value()->span(), .source = {from->data(), room, Device::cpu()}}));
  const auto at = [](const DeviceSpan& span, std::size_t row) { return static_cast<std::byte*>(span.data) + row * (bytes + gap); };
  std::vector<RowCopy> copies;
  for (std::size_t i = 0; i < rows; i += 1 + i % 3) {
    const std::size_t from = rows - 1 - i;
    copies.push_back({at(target.value()->span(), i), at((i % 2 == 0 ? even : odd).value()->span(), from)});
    std::memcpy(expected.data() + i * (bytes + gap), (i % 2 == 0 ? here_even : here_odd).data() + from * (bytes + gap), bytes);
  }
  auto keep = std::make_shared<int>(0);
  const std::weak_ptr<int> kept = keep;
  {
    const auto started = RowCopies::start(copies, bytes, device, std::move(keep));
    HMC_ASSERT_OK(started.status());
    const Status early = started->wait(Deadline::after_seconds(0));
    EXPECT_TRUE(early.ok() || early.code() == Code::timeout) << early.str();
    HMC_ASSERT_OK(started->wait());
    HMC_ASSERT_OK(started->wait(Deadline::after_seconds(0)));
  }
  EXPECT_TRUE(kept.expired());
  HMC_ASSERT_OK(RowCopies().wait());
  for (const auto& none : {RowCopies::start({}, bytes, device), RowCopies::start(copies, 0, device)}) {
    HMC_ASSERT_OK(none.status());
    HMC_ASSERT_OK(none->wait());
  }
  std::vector<std::byte> back(room);
  HMC_ASSERT_OK(copy({.target = {back.data(), room, Device::cpu()}, .source = target.value()->span()}));
  EXPECT_TRUE(back == expected);
}

// Blocks from host memory to the device and back. What HMC has pinned CUDA's kernel reaches; the copy engine takes the rest.
TEST_P(Blocks, BetweenTheHostAndTheDevice) {
  constexpr std::size_t page = 4096, room = 64 * page, count = 50, bytes = 1000;
  const auto memory = runtime_->allocate(0, room, {});
  ASSERT_TRUE(memory.ok());
  for (const std::size_t pinned : {std::size_t{0}, room / 2, room}) {
    auto pages = std::shared_ptr<std::byte>(static_cast<std::byte*>(std::aligned_alloc(page, room)), std::free);
    const auto data = testing::pattern(room, 7);
    std::ranges::copy(data, pages.get());
    std::unique_ptr<HostPin> pin;  // not every vendor pins
    if (pinned > 0) {
      auto made = runtime_->sharing().pin_host(0, {.span = {pages.get(), pinned, Device::cpu()}, .owner = pages});
      if (made.ok()) {
        pin = *std::move(made);
      } else {
        ASSERT_EQ(made.status().code(), Code::unsupported) << made.status().str();
      }
    }
    std::vector<std::uint64_t> there, here;
    for (std::size_t i = 0; i < count; ++i) {
      there.push_back(((i * 7) % count) * (bytes + 8));
      here.push_back(i * room / count + i % 3);
    }
    const auto clear = testing::pattern(room, 8), fresh = testing::pattern(room, 9);
    HMC_ASSERT_OK(copy({.target = memory.value()->span(), .source = {const_cast<std::byte*>(clear.data()), room, Device::cpu()}}));
    const long long before = launches();
    HMC_ASSERT_OK(copy({.target = memory.value()->span(),
                        .source = {pages.get(), room, Device::cpu()},
                        .source_offsets = here.data(),
                        .target_offsets = there.data(),
                        .blocks = count,
                        .block_bytes = bytes}));
    auto expected = clear;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(expected.data() + there[i], data.data() + here[i], bytes);
    std::vector<std::byte> found(room);
    HMC_ASSERT_OK(copy({.target = {found.data(), room, Device::cpu()}, .source = memory.value()->span()}));
    EXPECT_TRUE(found == expected) << pinned << " bytes pinned";
    std::ranges::copy(fresh, pages.get());
    HMC_ASSERT_OK(copy({.target = {pages.get(), room, Device::cpu()},
                        .source = memory.value()->span(),
                        .source_offsets = there.data(),
                        .target_offsets = here.data(),
                        .blocks = count,
                        .block_bytes = bytes}));
    auto back = fresh;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(back.data() + here[i], expected.data() + there[i], bytes);
    EXPECT_TRUE(std::ranges::equal(back, std::span(pages.get(), room))) << pinned << " bytes pinned";
    if (before < 0 || info_.vendor != "cuda") continue;
    EXPECT_EQ(launches() - before, pinned == room ? 2 : 0) << pinned << " bytes pinned";
  }
}

// Nobody waits for the first: the runtime drops what it keeps, on whatever thread it ends.
TEST_P(Blocks, RowsThatNobodyWaitsForKeepTheirMemory) {
  constexpr std::size_t bytes = 4096;
  const Device device = info_.devices.at(0).device;
  std::shared_ptr<Allocation> memory;
  {
    auto made = runtime_->allocate(0, 2 * bytes, {});
    ASSERT_TRUE(made.ok());
    memory = *std::move(made);
  }
  auto* const from = static_cast<std::byte*>(memory->span().data);
  const RowCopy row{from + bytes, from};
  const std::weak_ptr<Allocation> kept = memory;
  HMC_ASSERT_OK(RowCopies::start({&row, 1}, bytes, device, std::move(memory)).status());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!kept.expired()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    static_cast<void>(runtime_->poll());
  }
}

// The child has no thread that could end them, and may not touch the device.
TEST_P(Blocks, RowsOfAParentAreNotWaitedForInItsChild) {
  constexpr std::size_t bytes = 4096;
  const auto memory = runtime_->allocate(0, 2 * bytes, {});
  ASSERT_TRUE(memory.ok());
  auto* const from = static_cast<std::byte*>(memory.value()->span().data);
  const RowCopy row{from + bytes, from};
  const auto started = RowCopies::start({&row, 1}, bytes, info_.devices.at(0).device);
  HMC_ASSERT_OK(started.status());
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const Status waited = started->wait();
    _exit(waited.ok() || waited.code() == Code::closed ? 0 : 1);  // ok: it had ended before
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  HMC_EXPECT_OK(started->wait());
}

TEST_P(Blocks, EveryByteAtEveryWidth) {
  for (const auto& [count, block, align] : {std::tuple<std::size_t, std::size_t, std::size_t>{1, 4096, 16},
                                            {2, 1, 1},
                                            {100, 33, 1},
                                            {64, 4096, 16},
                                            {300, 20, 4},
                                            {257, 24, 8},
                                            {7, 100'000, 16}}) {
    round(count, block, align, static_cast<unsigned>(count + block));
    if (HasFatalFailure()) return;
  }
}

// More than one launch holds, and offsets enough that their memory is used again while launches still read.
TEST_P(Blocks, ManyAndAgain) {
  for (unsigned turn = 0; turn < 4; ++turn) {
    round(20'000, 8, 8, turn);
    if (HasFatalFailure()) return;
  }
}

// The simulated libraries say whether the kernel ran: at the latest once a run-time compiler has made it.
TEST_P(Blocks, ByTheKernelWhereThereIsOne) {
  if (launches() < 0 || !has_kernel()) GTEST_SKIP() << info_.vendor << " runs no kernel that could be counted";
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const long long before = launches();
  for (unsigned turn = 0; launches() == before; ++turn) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "no kernel was launched";
    round(50, 64, 16, turn);
    if (HasFatalFailure()) return;
  }
}

std::vector<const DeviceRuntimeFactory*> accelerators() {
  std::vector<const DeviceRuntimeFactory*> found;
  for (const auto* factory : device_runtimes()) {
    if (factory->vendor != "cpu") found.push_back(factory);
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(Every, Blocks, ::testing::ValuesIn(accelerators()),
                         [](const auto& each) { return std::string(each.param->vendor); });

}  // namespace
}  // namespace hmc
