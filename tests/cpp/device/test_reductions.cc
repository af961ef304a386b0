// Reductions by every device runtime: the same bits as the CPU's.
#include <dlfcn.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/reduce.h"
#include "device/runtime.h"
#include "testing.h"

namespace hmc {
namespace {

using Bytes = std::vector<std::byte>;

// Every pattern of bits: numbers of all sizes, subnormal ones, infinities, NaNs, zeros of both signs.
Bytes elements(DataType type, std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  const std::size_t each = size_of(type);
  Bytes made(count * each);
  const std::uint64_t special[] = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << (8 * each - 1)};
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t code = i % 17 < 4 ? special[(i + seed) % 4] : random();
    if (i % 2 == 0 && type == DataType::f32) {
      const float value = static_cast<float>(code % 1000003) / 7.0F;
      std::memcpy(&code, &value, sizeof value);
    }
    std::memcpy(made.data() + i * each, &code, each);
  }
  return made;
}

// The processor that reduces chooses a NaN's sign and payload.
bool is_nan(DataType type, const std::byte* at) {
  std::uint64_t code = 0;
  std::memcpy(&code, at, size_of(type));
  switch (type) {
    case DataType::f64:
      return (code & ~(std::uint64_t{1} << 63)) > 0x7ff0000000000000;
    case DataType::f32:
      return (code & 0x7fffffff) > 0x7f800000;
    case DataType::f16:
      return (code & 0x7fff) > 0x7c00;
    case DataType::bf16:
      return (code & 0x7fff) > 0x7f80;
    case DataType::f8_e4m3fn:
      return (code & 0x7f) == 0x7f;
    case DataType::f8_e4m3fnuz:
      return code == 0x80;
    case DataType::f8_e5m2:
      return (code & 0x7f) > 0x7c;
    default:
      return false;
  }
}

class Reductions : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {
 protected:
  void SetUp() override {
    runtime_ = &GetParam()->instance();
    info_ = runtime_->enumerate();
    if (!info_.available) GTEST_SKIP() << info_.vendor << " is not available: " << info_.reason;
    device_ = info_.devices.at(0).device;
    const auto& has = info_.devices.at(0).capabilities;
    if (!device_.is_cpu() && std::ranges::find(has, "reductions") == has.end()) {
      EXPECT_EQ(ready(DataType::f32).code(), Code::unsupported);
      GTEST_SKIP() << info_.vendor << " does not reduce: " << ready(DataType::f32).str();
    }
  }
  Status ready(DataType type) { return runtime_->compute().prepare_reduction(device_.index(), type, 2); }
  // At the latest once a run-time compiler has made the kernel.
  void wait_until_ready(DataType type) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!ready(type).ok()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << ready(type).str();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::unique_ptr<Allocation> memory_of(const Bytes& bytes) {
    auto made = runtime_->allocate(device_.index(), bytes.size(), {});
    EXPECT_TRUE(made.ok()) << made.status().str();
    HMC_EXPECT_OK(copy_blocking({(*made)->span().data, bytes.size(), device_},
                                {const_cast<std::byte*>(bytes.data()), bytes.size(), Device::cpu()}));
    return std::move(made).value();
  }
  Bytes read(const Allocation& memory) {
    Bytes bytes(memory.span().bytes);
    HMC_EXPECT_OK(copy_blocking({bytes.data(), bytes.size(), Device::cpu()}, memory.span()));
    return bytes;
  }

  // `shift`: bytes off any alignment; every source by as many more. in_place: the target is the first source.
  void check(const ReduceStep& step, std::size_t sources, std::size_t count, std::size_t shift, bool in_place) {
    SCOPED_TRACE(std::string(name_of(step.op)) + " of " + std::to_string(sources) + " x " + std::to_string(count) + " " +
                 std::string(name_of(step.type)) + ", shift " + std::to_string(shift));
    const std::size_t bytes = count * size_of(step.type);
    constexpr std::size_t guard = 48;
    std::vector<Bytes> host;
    std::vector<std::unique_ptr<Allocation>> memory;
    std::vector<const void*> there, here;
    for (std::size_t s = 0; s < sources; ++s) {
      Bytes each(shift, std::byte{0xa5});
      const Bytes data =
          elements(step.type, count, static_cast<std::uint32_t>(100 * s + count + static_cast<std::size_t>(step.op)));
      each.insert(each.end(), data.begin(), data.end());
      each.resize(each.size() + guard, std::byte{0x5a});
      host.push_back(std::move(each));
    }
    for (const Bytes& each : host) {
      memory.push_back(memory_of(each));
      there.push_back(static_cast<const std::byte*>(memory.back()->span().data) + shift);
      here.push_back(each.data() + shift);
    }
    Bytes wanted = in_place ? host[0] : Bytes(shift + bytes + guard, std::byte{0x77});
    if (!in_place) memory.push_back(memory_of(wanted));
    const Allocation& target = in_place ? *memory[0] : *memory.back();
    reduce_on_cpu(wanted.data() + shift, here, count, step);
    BlockingCompletion done;
    HMC_ASSERT_OK(
        runtime_->compute().reduce({{static_cast<std::byte*>(target.span().data) + shift, bytes, device_}, there, step}, &done));
    HMC_ASSERT_OK(done.wait(*runtime_));
    const Bytes found = read(target);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = shift + i * size_of(step.type);
      if (is_nan(step.type, found.data() + at) && is_nan(step.type, wanted.data() + at))
        std::copy_n(found.begin() + static_cast<std::ptrdiff_t>(at), size_of(step.type),
                    wanted.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_TRUE(found == wanted) << "element "
                                 << (std::ranges::mismatch(found, wanted).in1 - found.begin() -
                                     static_cast<std::ptrdiff_t>(shift)) /
                                        static_cast<std::ptrdiff_t>(size_of(step.type));
    for (std::size_t s = in_place ? 1 : 0; s < sources; ++s) ASSERT_TRUE(read(*memory[s]) == host[s]) << "source " << s;
  }

  DeviceRuntime* runtime_ = nullptr;
  RuntimeInfo info_;
  Device device_;
};

std::string vendor_name(const ::testing::TestParamInfo<const DeviceRuntimeFactory*>& info) {
  return std::string(info.param->vendor);
}
INSTANTIATE_TEST_SUITE_P(All, Reductions, ::testing::ValuesIn(device_runtimes().begin(), device_runtimes().end()), vendor_name);

TEST_P(Reductions, EveryTypeAndOperation) {
  for (std::size_t type = 0; type < data_types; ++type) {
    wait_until_ready(static_cast<DataType>(type));
    for (std::size_t op = 0; op < reduce_ops; ++op) {
      const Reduction reduction{static_cast<DataType>(type), static_cast<ReduceOp>(op), 0.3};
      if (!check_reduction(reduction).ok()) continue;
      ReduceStep step{reduction.type, reduction.op, 1, 1};
      if (reduction.op == ReduceOp::premul_sum) step.scale = reduction.factor;
      if (reduction.op == ReduceOp::avg) step.divisor = 3;
      check(step, 3, 1031, 0, false);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// A vendor's loader waits for all streams, and would hold up who is to release this one.
TEST_P(Reductions, NoKernelIsLoadedWhileTheHostHoldsAStream) {
  constexpr DataType type = DataType::f64;
  if (device_.is_cpu()) GTEST_SKIP() << "loads nothing";
  const auto gate = std::make_shared<StreamGate>();
  if (!runtime_->streams().hold(device_.index(), default_stream, gate).ok()) GTEST_SKIP() << "holds no stream";
  const Status early = runtime_->compute().prepare_exchange(device_.index(), type);
  gate->open();
  EXPECT_EQ(early.code(), Code::unsupported) << early.str();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (early.str().find("loading") != std::string::npos && !runtime_->compute().prepare_exchange(device_.index(), type).ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Where a stream is held for long, each call would wait for its kernel.
TEST_P(Reductions, CallsDoNotWaitAgainForAKernelThatCannotBeLoaded) {
  constexpr DataType type = DataType::u16;
  if (device_.is_cpu()) GTEST_SKIP() << "loads nothing";
  const auto gate = std::make_shared<StreamGate>();
  if (!runtime_->streams().hold(device_.index(), default_stream, gate).ok()) GTEST_SKIP() << "holds no stream";
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 0; call < 300; ++call)
    EXPECT_EQ(runtime_->compute().prepare_exchange(device_.index(), type).code(), Code::unsupported);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "each waits 0.1 s";
  gate->open();
}

// Kernels of a vendor's collective library wait for other devices.
TEST_P(Reductions, NoKernelIsLoadedWhileAnotherLibraryQueuesItsOwn) {
  constexpr DataType type = DataType::i64;
  const auto queue = runtime_->streams().open_queue(device_.index());
  if (!queue.ok()) GTEST_SKIP() << queue.status().str();
  Status meanwhile;
  const auto issue = [&](StreamHandle) {
    meanwhile = runtime_->compute().prepare_exchange(device_.index(), type);
    return Status();
  };
  BlockingCompletion done;
  HMC_ASSERT_OK((*queue)->run({}, issue, &done));
  HMC_ASSERT_OK(done.wait(*runtime_));
  EXPECT_EQ(meanwhile.code(), Code::unsupported) << meanwhile.str();
}

TEST_P(Reductions, EverySizeAndAlignment) {
  for (const DataType type : {DataType::f32, DataType::bf16, DataType::u8, DataType::f64}) {
    wait_until_ready(type);
    for (const std::size_t count : {0U, 1U, 7U, 16U, 17U, 1023U, 4096U, 100'003U}) {
      for (const std::size_t shift : {std::size_t{0}, size_of(type), std::size_t{1}, std::size_t{16}}) {
        check({type, ReduceOp::sum, 1, 1}, 2, count, shift, false);
        check({type, ReduceOp::max, 1, 1}, 2, count, shift, true);
      }
    }
    for (const std::size_t sources : {std::size_t{1}, std::size_t{5}, most_reduced_sources}) {
      check({type, ReduceOp::sum, 1, 1}, sources, 333, 0, false);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(Reductions, RefusesWhatItCannot) {
  if (device_.is_cpu()) GTEST_SKIP() << "the CPU reduces any number of arrays";
  wait_until_ready(DataType::f32);
  EXPECT_EQ(runtime_->compute().prepare_reduction(device_.index(), DataType::f32, most_reduced_sources + 1).code(),
            Code::unsupported);
  EXPECT_FALSE(runtime_->compute().prepare_reduction(999, DataType::f32, 2).ok());
}

}  // namespace
}  // namespace hmc
