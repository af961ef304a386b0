// Weighted sums in the memory of every device runtime: the bits are the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/runtime.h"
#include "hmc/weighted_sum.h"
#include "testing.h"

namespace hmc {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr std::array summed_types{DataType::f32,       DataType::f16,         DataType::bf16,
                                  DataType::f8_e4m3fn, DataType::f8_e4m3fnuz, DataType::f8_e5m2};

// One sum: `skip` bytes before the target and the rows.
struct Case {
  DataType type = DataType::bf16;
  std::size_t results = 1, terms = 1, columns = 1, skip_out = 0, skip_rows = 0;
  bool marks = false;
  bool any_bits = false;  // else small numbers

  [[nodiscard]] std::size_t row() const { return columns * size_of(type); }
  [[nodiscard]] std::string str() const {
    return std::string(name_of(type)) + ", " + std::to_string(results) + " x " + std::to_string(terms) + " x " +
           std::to_string(columns) + ", behind " + std::to_string(skip_out) + " and " + std::to_string(skip_rows) + " bytes" +
           (marks ? ", marked" : "");
  }
};

// Any patterns of bits, or codes of small numbers.
Bytes summands(const Case& of, std::size_t count, Random& random) {
  Bytes made(count * size_of(of.type));
  if (of.any_bits) {
    for (std::byte& byte : made) byte = static_cast<std::byte>(random());
    return made;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 333;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if (of.type == DataType::bf16) bits >>= 16;
    if (of.type == DataType::f16)
      bits = 0x3000U + static_cast<std::uint32_t>(random() % 0x1000) + (random() % 2 == 0 ? 0x8000U : 0);
    if (size_of(of.type) == 1) bits = static_cast<std::uint32_t>(random() % 0x78) + (random() % 2 == 0 ? 0x80U : 0);
    std::memcpy(made.data() + i * size_of(of.type), &bits, size_of(of.type));
  }
  return made;
}

bool holds_nan(DataType type, std::uint32_t code) {
  if (type == DataType::f32) return (code & 0x7fffffffU) > 0x7f800000U;
  if (type == DataType::f16) return (code & 0x7fffU) > 0x7c00U;
  if (type == DataType::bf16) return (code & 0x7fffU) > 0x7f80U;
  if (type == DataType::f8_e4m3fn) return (code & 0x7fU) == 0x7fU;
  if (type == DataType::f8_e4m3fnuz) return code == 0x80U;
  return (code & 0x7fU) > 0x7cU;
}

// Elements that differ; the sign and payload of a NaN are free.
std::size_t differing(DataType type, const Bytes& a, const Bytes& b) {
  const std::size_t size = size_of(type);
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t at = 0; at + size <= std::min(a.size(), b.size()); at += size) {
    std::uint32_t x = 0, y = 0;
    std::memcpy(&x, a.data() + at, size);
    std::memcpy(&y, b.data() + at, size);
    count += x != y && !(holds_nan(type, x) && holds_nan(type, y)) ? 1U : 0U;
  }
  return count;
}

class WeightedSumDevices : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {
 protected:
  void SetUp() override {
    if (GetParam()->vendor == "cpu") GTEST_SKIP() << "test_weighted_sum.cc";
    runtime_ = &GetParam()->instance();
    const RuntimeInfo info = runtime_->enumerate();
    if (!info.available || info.devices.empty()) GTEST_SKIP() << info.vendor << " is not available: " << info.reason;
    device_ = info.devices.at(0).device;
    const auto& has = info.devices.at(0).capabilities;
    if (std::ranges::find(has, "weighted sums") == has.end()) {
      EXPECT_EQ(prepare_weighted_sum(device_, DataType::bf16).status().code(), Code::unsupported);
      const auto rows = on_device(Bytes(64), 0), out = on_device(Bytes(16, std::byte{7}), 0);
      const std::vector<float> weights(4, 1);
      EXPECT_EQ(weighted_sum(span(out, 0, 16), span(rows, 0, 64), weights, 4, DataType::bf16).code(), Code::unsupported);
      EXPECT_EQ(read(span(out, 0, 16)), Bytes(16, std::byte{7}));
      GTEST_SKIP() << info.vendor << " runs no kernel of ours";
    }
  }

  // `skip` bytes, then these.
  std::unique_ptr<Allocation> on_device(const Bytes& bytes, std::size_t skip) {
    auto memory = runtime_->allocate(device_.index(), bytes.size() + skip, {});
    EXPECT_TRUE(memory.ok()) << memory.status().str();
    if (bytes.empty()) return std::move(memory).value();
    auto copy = bytes;
    HMC_EXPECT_OK(copy_blocking({static_cast<std::byte*>((*memory)->span().data) + skip, bytes.size(), device_},
                                {copy.data(), copy.size(), Device::cpu()}));
    return std::move(memory).value();
  }
  static std::span<std::byte> span(const std::unique_ptr<Allocation>& memory, std::size_t skip, std::size_t bytes) {
    return {static_cast<std::byte*>(memory->span().data) + skip, bytes};
  }
  [[nodiscard]] Bytes read(std::span<std::byte> from) const {
    Bytes bytes(from.size());
    if (!bytes.empty())
      HMC_EXPECT_OK(copy_blocking({bytes.data(), bytes.size(), Device::cpu()}, {from.data(), from.size(), device_}));
    return bytes;
  }
  // At the latest once a run-time compiler has made the kernel.
  void make_ready(DataType type) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    auto ready = prepare_weighted_sum(device_, type);
    while (ready.ok() && !*ready && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ready = prepare_weighted_sum(device_, type);
    }
    ASSERT_TRUE(ready.ok() && *ready) << ready.status().str();
  }

  void check(const Case& of, Random& random) {
    SCOPED_TRACE(of.str());
    std::vector<float> weights(of.results * of.terms);
    for (float& weight : weights) weight = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 700.0F;
    std::vector<std::uint8_t> used;
    for (std::size_t i = 0; of.marks && i < weights.size(); ++i)
      used.push_back(random() % 3 == 0 ? 0 : random() % 2 == 0 ? 1 : 255);
    const Bytes rows = summands(of, weights.size() * of.columns, random);
    const Bytes before(of.results * of.row() + of.skip_out + 16, std::byte{0xa5});
    const auto there = on_device(rows, of.skip_rows), out = on_device(before, 0);
    Bytes wanted = before;
    const std::size_t bytes = of.results * of.row();
    HMC_ASSERT_OK(weighted_sum(std::span(wanted).subspan(of.skip_out, bytes), rows, weights, of.terms, of.type, used));
    HMC_ASSERT_OK(
        weighted_sum(span(out, of.skip_out, bytes), span(there, of.skip_rows, rows.size()), weights, of.terms, of.type, used));
    const Bytes found = read(span(out, 0, before.size()));
    const auto part = [&](const Bytes& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(of.skip_out);
      return Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes));
    };
    EXPECT_EQ(differing(of.type, part(found), part(wanted)), 0U);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool outside = i < of.skip_out || i >= of.skip_out + bytes;
      ASSERT_TRUE(!outside || found[i] == before[i]) << i;
    }
    EXPECT_EQ(read(span(there, of.skip_rows, rows.size())), rows);
  }

  DeviceRuntime* runtime_ = nullptr;
  Device device_ = Device::cpu();
};

// A vendor's loader waits for all streams, and would hold up who is to release this one. The first test: no kernel is loaded yet.
TEST_P(WeightedSumDevices, NoKernelIsLoadedWhileTheHostHoldsAStream) {
  const auto gate = std::make_shared<StreamGate>();
  if (!runtime_->streams().hold(device_.index(), default_stream, gate).ok()) GTEST_SKIP() << "holds no stream";
  const auto early = prepare_weighted_sum(device_, DataType::f32);
  gate->open();
  ASSERT_TRUE(early.ok()) << early.status().str();
  EXPECT_FALSE(*early);
  make_ready(DataType::f32);
}

TEST_P(WeightedSumDevices, TheBitsAreThoseOfTheCpu) {
  Random random(20261126);
  for (const DataType type : summed_types) {
    make_ready(type);
    for (const std::size_t columns : {1U, 2U, 7U, 8U, 33U, 64U, 1031U}) {
      for (const std::size_t terms : {1U, 2U, 4U, 5U, 8U, 9U}) {
        Case of{type, random() % 6, terms, columns};
        of.marks = random() % 2 == 0;
        of.any_bits = random() % 2 == 0;
        check(of, random);
        of.results = 1 + random() % 3;
        of.skip_out = size_of(type) * (random() % 9);
        of.skip_rows = size_of(type) * (random() % 9);
        check(of, random);
        if (HasFailure()) return;
      }
    }
  }
}

// The kernels of the device take any address; the CPU's loops too, where they need not.
TEST_P(WeightedSumDevices, RowsAtAnyAddress) {
  Random random(7);
  for (const DataType type : summed_types) {
    make_ready(type);
    for (const std::size_t skip : {1U, 3U, 5U, 15U}) check({type, 3, 3, 17, skip, 16 - skip, true}, random);
  }
}

// More packs than all threads take at a time.
TEST_P(WeightedSumDevices, ManyRows) {
  Random random(9);
  make_ready(DataType::bf16);
  check({DataType::bf16, 128, 8, 1024, 0, 0, false}, random);
  check({DataType::bf16, 300, 3, 101, 2, 4, true}, random);
}

TEST_P(WeightedSumDevices, AllTermsLeftOutAreZeros) {
  make_ready(DataType::f32);
  const auto rows = on_device(Bytes(5 * 2 * 12, std::byte{0x7f}), 0), out = on_device(Bytes(5 * 12, std::byte{0xa5}), 0);
  const std::vector<float> weights(10, std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::uint8_t> none(10, 0);
  HMC_ASSERT_OK(weighted_sum(span(out, 0, 60), span(rows, 0, 120), weights, 2, DataType::f32, none));
  EXPECT_EQ(read(span(out, 0, 60)), Bytes(60));
}

TEST_P(WeightedSumDevices, RowsInDifferentPlaces) {
  Random random(11);
  const Case of{DataType::bf16, 9, 4, 40};
  make_ready(of.type);
  const std::size_t terms = of.results * of.terms, bytes = of.results * of.row();
  const Bytes even = summands(of, terms * of.columns, random), odd = summands(of, terms * of.columns, random);
  const auto even_there = on_device(even, 0), odd_there = on_device(odd, 6), out = on_device(Bytes(bytes, std::byte{0xa5}), 0);
  std::vector<float> weights(terms);
  for (float& weight : weights) weight = static_cast<float>(random() % 9) / 4.0F;
  std::vector<const std::byte*> here(terms), there(terms);
  for (std::size_t i = 0; i < terms; ++i) {
    if (i % 5 == 0) continue;
    const std::size_t row = (terms - 1 - i) * of.row();
    here[i] = (i % 2 == 0 ? even : odd).data() + row;
    there[i] = span(i % 2 == 0 ? even_there : odd_there, (i % 2 == 0 ? 0 : 6) + row, of.row()).data();
  }
  Bytes wanted(bytes);
  HMC_ASSERT_OK(weighted_sum_of_rows(wanted, here, weights, of.terms, of.type));
  HMC_ASSERT_OK(weighted_sum_of_rows(span(out, 0, bytes), there, weights, of.terms, of.type, device_));
  EXPECT_EQ(differing(of.type, read(span(out, 0, bytes)), wanted), 0U);
  HMC_ASSERT_OK(weighted_sum_of_rows(span(out, 0, 60), {}, {}, 0, of.type, device_));
  EXPECT_EQ(read(span(out, 0, 60)), Bytes(60));
}

TEST_P(WeightedSumDevices, WithoutTermsTheRowsAreZeros) {
  const auto out = on_device(Bytes(60, std::byte{0xa5}), 0);
  HMC_ASSERT_OK(weighted_sum(span(out, 0, 59), {}, {}, 0, DataType::bf16));
  Bytes wanted(60);
  wanted.back() = std::byte{0xa5};
  EXPECT_EQ(read(span(out, 0, 60)), wanted);
}

TEST_P(WeightedSumDevices, RefusesMemoryOfTwo) {
  make_ready(DataType::f32);
  const auto rows = on_device(Bytes(120), 0), out = on_device(Bytes(60, std::byte{0xa5}), 0);
  const std::vector<float> weights(10, 1);
  Bytes here(120);
  EXPECT_EQ(weighted_sum(span(out, 0, 60), here, weights, 2, DataType::f32).code(), Code::unsupported);
  EXPECT_EQ(weighted_sum(std::span(here).first(60), span(rows, 0, 120), weights, 2, DataType::f32).code(), Code::unsupported);
  EXPECT_EQ(weighted_sum(span(out, 0, 56), span(rows, 0, 120), weights, 2, DataType::f32).code(), Code::invalid_argument);
  EXPECT_EQ(read(span(out, 0, 60)), Bytes(60, std::byte{0xa5}));
}

TEST_P(WeightedSumDevices, ThreadsAtTheSameTime) {
  make_ready(DataType::f16);
  std::vector<std::jthread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([this, seed] {
      Random random(seed);
      for (int round = 0; round < 10 && !HasFailure(); ++round)
        check({DataType::f16, 1 + random() % 9, 1 + random() % 9, 1 + random() % 99, 2 * (random() % 3), 0, true}, random);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Every, WeightedSumDevices, ::testing::ValuesIn(device_runtimes().begin(), device_runtimes().end()),
                         [](const auto& info) { return std::string(info.param->vendor); });

}  // namespace
}  // namespace hmc
