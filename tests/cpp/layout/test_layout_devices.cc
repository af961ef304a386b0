// Digests and conversions in the memory of every device runtime: the numbers and bytes are the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/runtime.h"
#include "hmc/layout.h"
#include "testing.h"

namespace hmc {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr std::array types{DataType::f32,       DataType::f16,         DataType::bf16,
                           DataType::f8_e4m3fn, DataType::f8_e4m3fnuz, DataType::f8_e5m2};

std::uint64_t between(Random& random, std::uint64_t least, std::uint64_t most) { return least + random() % (most - least + 1); }

// Every pattern of bits; of f32 also numbers that the narrow types hold.
Bytes elements(DataType type, std::size_t bytes, Random& random) {
  Bytes made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  for (std::size_t i = 0; type == DataType::f32 && i + 8 <= bytes; i += 8) {
    const float value = static_cast<float>(static_cast<std::int64_t>(random() % 2000003) - 1000001) / 700.0F;
    std::memcpy(made.data() + i, &value, sizeof value);
  }
  return made;
}

bool is_nan(DataType type, std::uint32_t code) {
  if (type == DataType::f32) return (code & 0x7fffffffU) > 0x7f800000U;
  if (type == DataType::f16) return (code & 0x7fffU) > 0x7c00U;
  return type == DataType::bf16 && (code & 0x7fffU) > 0x7f80U;
}

// Elements that differ; the payload of a NaN is free.
std::size_t different(DataType type, const Bytes& a, const Bytes& b) {
  const std::size_t size = size_of(type);
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t at = 0; at + size <= std::min(a.size(), b.size()); at += size) {
    std::uint32_t x = 0, y = 0;
    std::memcpy(&x, a.data() + at, size);
    std::memcpy(&y, b.data() + at, size);
    count += x != y && !(is_nan(type, x) && is_nan(type, y)) ? 1U : 0U;
  }
  return count;
}

// One of the orders of axes, with these extents; rows are padded at times.
Layout drawn(Random& random, DataType type, std::uint64_t heads, std::uint64_t dims, std::uint64_t tokens, std::uint64_t kv) {
  const std::string d = std::to_string(dims), n = std::to_string(tokens);
  const std::string row = std::to_string(dims + between(random, 0, 1) * between(random, 1, 40));
  std::vector<std::string> orders;
  if (kv == 2) {
    orders = {"L B H N (kv D)",
              "L B kv H N:" + row + " D",
              "L kv B N H:" + row + " D",
              "L | B kv N H D",
              "L kv | B H N D",
              "B L H D N kv",
              "L B kv H D N",
              "D N kv H B L",
              "L B N H kv D",
              "N B kv H L D"};
    for (const std::uint64_t part : {16U, 8U, 4U, 2U}) {
      const std::string x = std::to_string(part);
      if (dims % part == 0) orders.push_back("L B kv H D/" + x + " N " + x);
      if (dims % part == 0 && tokens % 4 == 0) orders.push_back("L B N/4 H kv D/" + x + " N%4 D%" + x);
    }
  } else {
    orders = {"L B H N:" + row + " D", "B H L N D", "L | B N H D", "L B H D N"};
  }
  LayoutGiven given;
  given.first_layer = between(random, 0, 2);
  given.first_head = between(random, 0, 3);
  given.extents = {between(random, 3, 5), between(random, 6, 9), tokens, heads, 0, dims};
  given.type = type;
  const std::uint64_t scaled = random() % 3;
  for (std::uint64_t i = 0; scaled != 0 && i < (scaled == 1 ? 1 : kv == 2 ? 2 : 1); ++i)
    given.scales.push_back(static_cast<float>(between(random, 1, 64)) / 8.0F);
  const auto made = Layout::parse(orders[random() % orders.size()], given);
  EXPECT_TRUE(made.ok()) << made.status().str();
  return made.value();
}

// Which both have.
LayoutRange shared(LayoutRange a, LayoutRange b) {
  const std::uint64_t first = std::max(a.first, b.first);
  return {first, std::min(a.first + a.count, b.first + b.count) - first};
}

std::vector<std::uint64_t> some_blocks(Random& random, const Layout& layout) {
  std::vector<std::uint64_t> blocks(layout.extent(LayoutAxis::block));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  blocks.resize(between(random, 3, blocks.size()));
  return blocks;
}

// A cache in CPU memory and on a device.
struct Twin {
  std::vector<Bytes> here;
  std::vector<std::unique_ptr<Allocation>> there;

  std::vector<std::span<std::byte>> cpu() {
    std::vector<std::span<std::byte>> spans;
    for (Bytes& each : here) spans.emplace_back(each);
    return spans;
  }
  [[nodiscard]] std::vector<std::span<std::byte>> device() const {
    std::vector<std::span<std::byte>> spans;
    for (std::size_t i = 0; i < there.size(); ++i)
      spans.emplace_back(static_cast<std::byte*>(there[i]->span().data), here[i].size());
    return spans;
  }
};

std::vector<std::span<const std::byte>> constant(const std::vector<std::span<std::byte>>& spans) {
  return {spans.begin(), spans.end()};
}

class LayoutDevices : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {
 protected:
  void SetUp() override {
    if (GetParam()->vendor == "cpu") GTEST_SKIP() << "test_layout.cc";
    runtime_ = &GetParam()->instance();
    const RuntimeInfo info = runtime_->enumerate();
    if (!info.available || info.devices.empty()) GTEST_SKIP() << info.vendor << " is not available: " << info.reason;
    device_ = info.devices.at(0).device;
    const auto& has = info.devices.at(0).capabilities;
    if (std::ranges::find(has, "layouts") != has.end()) return;
    const auto layout = Layout::parse("B=4 N=4 D=8 bf16");
    const Twin twin = twin_of(*layout);
    const std::vector<std::uint64_t> blocks{2, 0};
    EXPECT_EQ(layout_digest({*layout, {blocks, 1}, 5, 0, {}, {}}, constant(twin.device())).status().code(), Code::unsupported);
    GTEST_SKIP() << info.vendor << " runs no kernel of ours";
  }

  Twin twin_of(const Layout& layout) {
    Twin made;
    for (std::uint64_t i = 0; i < layout.buffers(); ++i) {
      made.here.push_back(elements(layout.type(), layout.buffer_bytes(), random_));
      auto memory = runtime_->allocate(device_.index(), layout.buffer_bytes(), {});
      EXPECT_TRUE(memory.ok()) << memory.status().str();
      HMC_EXPECT_OK(copy_blocking({(*memory)->span().data, made.here.back().size(), device_},
                                  {made.here.back().data(), made.here.back().size(), Device::cpu()}));
      made.there.push_back(std::move(memory).value());
    }
    return made;
  }
  static Bytes read(const std::span<std::byte>& span, const Device& device) {
    Bytes bytes(span.size());
    HMC_EXPECT_OK(copy_blocking({bytes.data(), bytes.size(), Device::cpu()}, {span.data(), span.size(), device}));
    return bytes;
  }
  // At the latest once a run-time compiler has made the kernel.
  template <class Call>
  static auto ready(const Call& call) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    auto result = call();
    while (result.status().code() == Code::unsupported && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      result = call();
    }
    return result;
  }

  void check_digests(const Layout& layout) {
    SCOPED_TRACE(layout.str());
    Twin twin = twin_of(layout);
    const auto blocks = some_blocks(random_, layout);
    const std::uint64_t size = layout.extent(LayoutAxis::token);
    const std::uint64_t first = between(random_, 0, size + 1), tokens = between(random_, 1, blocks.size() * size - first);
    LayoutSelection selection{layout, {blocks, first}, tokens, between(random_, 0, 100000), {}, {}};
    if (random_() % 2 == 0) {
      selection.layers = {layout.layers().first + 1, between(random_, 1, layout.layers().count - 1)};
      selection.heads = {layout.heads().first + between(random_, 0, layout.heads().count - 1), 1};
    }
    const auto wanted = layout_digests(selection, constant(twin.cpu()));
    const auto found = ready([&] { return layout_digests(selection, constant(twin.device())); });
    ASSERT_TRUE(wanted.ok() && found.ok()) << wanted.status().str() << " " << found.status().str();
    EXPECT_EQ(*found, *wanted);
    const auto one = layout_digest(selection, constant(twin.device()));
    ASSERT_TRUE(one.ok()) << one.status().str();
    EXPECT_EQ(*one, std::accumulate(wanted->begin(), wanted->end(), std::uint64_t{0}));
  }

  void check_conversion(const Layout& source, const Layout& target) {
    SCOPED_TRACE(source.str() + " to " + target.str());
    Twin from = twin_of(source), to = twin_of(target);
    const auto source_blocks = some_blocks(random_, source), target_blocks = some_blocks(random_, target);
    const std::uint64_t a = source.extent(LayoutAxis::token), b = target.extent(LayoutAxis::token);
    const std::uint64_t source_first = between(random_, 0, a), target_first = between(random_, 0, b);
    const std::uint64_t tokens =
        between(random_, 1, std::min(source_blocks.size() * a - source_first, target_blocks.size() * b - target_first));
    const LayoutMove move{source, {source_blocks, source_first}, target, {target_blocks, target_first}, tokens, 77, {}, {}};
    const LayoutConvertOptions options{static_cast<LayoutDigest>(random_() % 3)};
    const auto wanted = layout_convert(move, constant(from.cpu()), to.cpu(), options);
    const auto found = ready([&] { return layout_convert(move, constant(from.device()), to.device(), options); });
    ASSERT_TRUE(wanted.ok() && found.ok()) << wanted.status().str() << " " << found.status().str();
    const auto written = to.device(), read_from = from.device();
    if (options.digest == LayoutDigest::target) {  // the bits of a NaN may differ
      const LayoutSelection selection{target,
                                      {target_blocks, target_first},
                                      tokens,
                                      77,
                                      shared(source.layers(), target.layers()),
                                      shared(source.heads(), target.heads())};
      EXPECT_EQ(*wanted, *layout_digest(selection, constant(to.cpu())));
      EXPECT_EQ(*found, *layout_digest(selection, constant(to.device())));
    } else {
      EXPECT_EQ(*found, *wanted);
    }
    for (std::size_t i = 0; i < written.size(); ++i) EXPECT_EQ(different(target.type(), read(written[i], device_), to.here[i]), 0U);
    for (std::size_t i = 0; i < read_from.size(); ++i) EXPECT_EQ(read(read_from[i], device_), from.here[i]);
  }

  DeviceRuntime* runtime_ = nullptr;
  Device device_ = Device::cpu();
  Random random_{20261126};
};

constexpr std::array<std::uint64_t, 7> dimensions{1, 8, 24, 33, 64, 128, 576};

// A vendor's loader waits for all streams, and would hold up who is to release this one. The first test: no kernel is loaded yet.
TEST_P(LayoutDevices, NoKernelIsLoadedWhileTheHostHoldsAStream) {
  const auto layout = Layout::parse("L=2 B=4 H=2 N=4 D=8 f32");
  ASSERT_TRUE(layout.ok());
  Twin twin = twin_of(*layout);
  const std::vector<std::uint64_t> blocks{2, 0};
  const LayoutSelection selection{*layout, {blocks, 1}, 5, 0, {}, {}};
  const auto gate = std::make_shared<StreamGate>();
  if (!runtime_->streams().hold(device_.index(), default_stream, gate).ok()) GTEST_SKIP() << "holds no stream";
  const auto early = layout_digest(selection, constant(twin.device()));
  gate->open();
  EXPECT_EQ(early.status().code(), Code::unsupported) << early.status().str();
  const auto found = ready([&] { return layout_digest(selection, constant(twin.device())); });
  const auto wanted = layout_digest(selection, constant(twin.cpu()));
  ASSERT_TRUE(found.ok() && wanted.ok()) << found.status().str();
  EXPECT_EQ(*found, *wanted);
}

TEST_P(LayoutDevices, DigestsAreThoseOfTheCpu) {
  for (const DataType type : types) {
    for (const std::uint64_t dims : dimensions) {
      for (int round = 0; round < (testing::slow() ? 1 : 3); ++round) {
        check_digests(drawn(random_, type, between(random_, 1, 5), dims, between(random_, 1, 20), between(random_, 1, 2)));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(LayoutDevices, ConversionsWriteTheBytesOfTheCpu) {
  for (const DataType from : types) {
    for (const DataType to : types) {
      for (int round = 0; round < (testing::slow() ? 1 : 6); ++round) {
        const std::uint64_t dims = dimensions[random_() % dimensions.size()], kv = between(random_, 1, 2);
        const Layout source = drawn(random_, from, between(random_, 4, 6), dims, between(random_, 1, 20), kv);
        check_conversion(source, drawn(random_, to, between(random_, 4, 6), dims, between(random_, 1, 20), kv));
        if (HasFailure()) return;
      }
    }
  }
}

// More rows than all groups of threads take at a time, and more tokens than a block of a table.
TEST_P(LayoutDevices, ManyRowsAreAllDigested) {
  const auto layout = Layout::parse("L=3 B=300 kv N=16 H=8 D=16 bf16"),
             turned = Layout::parse("L=3 B=150 kv H=8 D=16 N=32 f8_e5m2");
  ASSERT_TRUE(layout.ok() && turned.ok());
  Twin from = twin_of(*layout), to = twin_of(*turned);
  std::vector<std::uint64_t> blocks(300), larger(150);
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  std::iota(larger.begin(), larger.end(), 0);
  const LayoutSelection selection{*layout, {blocks, 3}, 4790, 5, {}, {}};
  const auto wanted = layout_digests(selection, constant(from.cpu()));
  const auto found = ready([&] { return layout_digests(selection, constant(from.device())); });
  ASSERT_TRUE(wanted.ok() && found.ok()) << found.status().str();
  EXPECT_TRUE(*wanted == *found);
  const LayoutMove move{*layout, {blocks, 3}, *turned, {larger, 1}, 4790, 5, {}, {}};
  const auto there = layout_convert(move, constant(from.cpu()), to.cpu(), {LayoutDigest::source});
  const auto here = ready([&] { return layout_convert(move, constant(from.device()), to.device(), {LayoutDigest::source}); });
  ASSERT_TRUE(there.ok() && here.ok()) << here.status().str();
  EXPECT_EQ(*there, *here);
  EXPECT_EQ(different(turned->type(), read(to.device()[0], device_), to.here[0]), 0U);
}

TEST_P(LayoutDevices, RefusesWhatItCannotReach) {
  const auto layout = Layout::parse("kv | B=4 N=4 D=8 bf16"), other = Layout::parse("kv B=4 N=4 D=8 bf16");
  ASSERT_TRUE(layout.ok() && other.ok());
  Twin twin = twin_of(*layout), target = twin_of(*other);
  const std::vector<std::uint64_t> blocks{2, 0};
  std::vector<std::span<std::byte>> mixed{twin.device()[0], twin.cpu()[1]};
  EXPECT_EQ(layout_digest({*layout, {blocks, 0}, 5, 0, {}, {}}, constant(mixed)).status().code(), Code::unsupported);
  EXPECT_EQ(layout_digest({*layout, {blocks, 0}, 0, 0, {}, {}}, constant(twin.device())).status().code(), Code::invalid_argument);
  const LayoutMove move{*layout, {blocks, 0}, *other, {blocks, 0}, 5, 0, {}, {}};
  const Bytes before = read(target.device()[0], device_);
  EXPECT_EQ(layout_convert(move, constant(twin.cpu()), target.device()).status().code(), Code::unsupported);
  const std::vector<std::span<std::byte>> odd{target.device()[0].subspan(1)};
  const auto larger = Layout::parse("kv B=2 N=4 D=8 bf16");
  const std::vector<std::uint64_t> first{0};
  EXPECT_EQ(layout_digest({*larger, {first, 0}, 4, 0, {}, {}}, constant(odd)).status().code(), Code::unsupported);
  EXPECT_EQ(read(target.device()[0], device_), before);
}

INSTANTIATE_TEST_SUITE_P(Every, LayoutDevices, ::testing::ValuesIn(device_runtimes().begin(), device_runtimes().end()),
                         [](const auto& info) { return std::string(info.param->vendor); });

}  // namespace
}  // namespace hmc
