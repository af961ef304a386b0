// Layouts as C++ programs use them, and the tiles' loops of every instruction set. tests/python/test_layout.py compares with NumPy.
#include "hmc/layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "layout/limits.h"
#include "layout/tile.h"
#include "layout/walk.h"

namespace hmc {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Layout, PlacesElementsInTheOrderOfItsAxes) {
  const auto layout = Layout::parse("L=2 | B=3 kv H=4@8 D=16/8 N=32 8 bf16");
  ASSERT_TRUE(layout.ok()) << layout.status().str();
  EXPECT_EQ(layout->buffers(), 2U);
  EXPECT_EQ(layout->buffer_bytes(), 3U * 2 * 4 * 16 * 32 * 2);
  EXPECT_EQ(layout->map(LayoutAxis::dim).offset(9), (32U * 8 + 1) * 2);
  EXPECT_EQ(layout->map(LayoutAxis::token).offset(5), 5U * 8 * 2);
  EXPECT_EQ(layout->map(LayoutAxis::layer).buffer, 1U);
  EXPECT_EQ(layout->heads(), (LayoutRange{8, 4}));
  EXPECT_EQ(Layout::parse(layout->str()).value(), *layout);
}

TEST(Layout, PacksTheScalesOfItsLayers) {
  const auto layout = Layout::parse("L=3@4 B=3 kv H=4 N=32:64 D=16 f8_e5m2 scale=1,2,3,4,5,6");
  ASSERT_TRUE(layout.ok()) << layout.status().str();
  const auto packed = layout->packed({5, 2}, {1, 2}, 7);
  ASSERT_TRUE(packed.ok()) << packed.status().str();
  EXPECT_EQ(packed->str(), "L=2@5 B=7 kv=2 H=2@1 N=32 D=16 f8_e5m2 scale=3,4,5,6");
  EXPECT_FALSE(layout->packed({5, 3}, {1, 2}, 7).ok());
  EXPECT_FALSE(layout->packed({5, 2}, {1, 2}, 0).ok());
}

// As long as it may get: a pair of scales for each of as many layers as there may be.
TEST(Layout, ReadsWhateverItWrites) {
  LayoutGiven given;
  for (std::size_t i = 0; i < 2 * 4096; ++i) given.scales.push_back(1.17549435e-30F + static_cast<float>(i) * 1.2345678e-32F);
  const auto layout = Layout::parse("L=4096@1048576 | B=2:32 kv=2:16 H=1@1048576 N=4/2:8 D=2:1 N%2:2 bf16", given);
  ASSERT_TRUE(layout.ok()) << layout.status().str().substr(0, 200);
  const std::string text = layout->str();
  const auto again = Layout::parse(text);
  ASSERT_TRUE(again.ok()) << again.status().str().substr(0, 200) << text.size();
  EXPECT_EQ(*again, *layout);
}

TEST(Layout, RefusesWhatIsBeyondTheLimits) {
  for (const char* const text : {"B=2 N=65537 D=8 bf16", "B=2 N=2 D=16385 bf16", "L=4097 B=2 N=2 D=8 bf16",
                                 "H=65537 B=2 N=2 D=8 bf16", "B=2:2000000000000000 N=2 D=8 bf16", "L=1@1048577 B=2 N=2 D=8 bf16",
                                 "kv=3 B=2 N=2 D=8 bf16", "B=99999999999999999999999 N=2 D=8 bf16", "B=2 N=2 D=8 0 bf16"}) {
    const auto layout = Layout::parse(text);
    ASSERT_FALSE(layout.ok()) << text;
    EXPECT_EQ(layout.status().code(), Code::invalid_argument) << text;
  }
  LayoutGiven given;
  given.scales = {std::nanf("")};
  EXPECT_FALSE(Layout::parse("B=2 N=2 D=8 bf16", given).ok());
  given.scales = {};
  given.first_head = 3;
  EXPECT_FALSE(Layout::parse("B=2 N=2 D=8 bf16", given).ok());
}

TEST(Layout, ScalesThatMakeNoNumberAreRefused) {
  const auto small = Layout::parse("B=1 N=1 D=2 bf16 scale=1,1e-30"), large = Layout::parse("B=1 N=1 D=2 bf16 kv=1 scale=1e30");
  const auto one = Layout::parse("B=1 N=1 D=2 f32 scale=1e-30"), other = Layout::parse("B=1 N=1 D=2 f32 scale=1e30");
  ASSERT_TRUE(small.ok() && large.ok() && one.ok() && other.ok());
  const std::vector<std::byte> zeros(8);
  std::vector<std::byte> back(8, std::byte{7});
  const std::vector<std::uint64_t> block{0};
  const std::span<const std::byte> from(zeros);
  const std::span<std::byte> to(back);
  for (const auto& [source, target] : {std::pair(*one, *other), std::pair(*other, *one)}) {
    const auto refused = layout_convert({source, {block, 0}, target, {block, 0}, 1, 0, {}, {}}, {&from, 1}, {&to, 1});
    EXPECT_EQ(refused.status().code(), Code::invalid_argument) << refused.status().str();
  }
  EXPECT_EQ(back, std::vector<std::byte>(8, std::byte{7}));
  // The scale of keys alone counts where there are no values.
  EXPECT_TRUE(layout_convert({*small, {block, 0}, *large, {block, 0}, 1, 0, {}, {}}, {&from, 1}, {&to, 1}).ok());
}

TEST(Layout, ConvertsThereAndBack) {
  const auto a = Layout::parse("L=2 B=4 H=2 N=32 (kv D=24) bf16"), b = Layout::parse("L=2 kv | B=2 H=2 D=24 N=64 bf16");
  ASSERT_TRUE(a.ok() && b.ok());
  const std::vector<std::byte> original = random_bytes(a->buffer_bytes(), 1);
  std::vector<std::vector<std::byte>> middle(4, std::vector<std::byte>(b->buffer_bytes()));
  std::vector<std::byte> back(original.size());
  const std::vector<std::uint64_t> four{2, 0, 3, 1}, two{1, 0};
  std::vector<std::span<std::byte>> written(middle.begin(), middle.end());
  const std::vector<std::span<const std::byte>> read(middle.begin(), middle.end());
  const std::span<const std::byte> from(original);
  const std::span<std::byte> to(back);
  const auto there = layout_convert({*a, {four, 0}, *b, {two, 0}, 128, 0, {}, {}}, {&from, 1}, written, {LayoutDigest::source});
  ASSERT_TRUE(there.ok()) << there.status().str();
  const auto home = layout_convert({*b, {two, 0}, *a, {four, 0}, 128, 0, {}, {}}, read, {&to, 1}, {LayoutDigest::source});
  ASSERT_TRUE(home.ok()) << home.status().str();
  EXPECT_EQ(*there, *home);
  EXPECT_NE(*there, 0U);
  EXPECT_EQ(back, original);
}

// Several threads convert and digest what one does alike.
TEST(Layout, ManyThreadsComputeWhatOneDoes) {
  const auto a = Layout::parse("L=3 B=40 H=2 N=96 (kv D=64) bf16"), b = Layout::parse("L=3 kv | B=120 H=2 D=64 N=32 f32");
  ASSERT_TRUE(a.ok() && b.ok());
  std::vector<std::byte> original = random_bytes(a->buffer_bytes(), 5);
  for (std::size_t i = 1; i < original.size(); i += 2) original[i] &= std::byte{0x3f};  // no NaN
  std::vector<std::uint64_t> from(37), to(111);
  std::iota(from.rbegin(), from.rend(), 2);
  std::iota(to.begin(), to.end(), 5);
  const std::span<const std::byte> read(original);
  std::vector<std::vector<std::byte>> found;
  std::vector<std::uint64_t> sums;
  for (const char* const threads : {"1", "2", "7"}) {
    setenv("HMC_CPU_THREADS", threads, 1);
    std::vector<std::vector<std::byte>> target(6, std::vector<std::byte>(b->buffer_bytes()));
    const std::vector<std::span<std::byte>> written(target.begin(), target.end());
    const auto sum = layout_convert({*a, {from, 5}, *b, {to, 5}, 3500, 0, {}, {}}, {&read, 1}, written, {LayoutDigest::source});
    ASSERT_TRUE(sum.ok()) << sum.status().str();
    const LayoutSelection selection{*a, {from, 5}, 3500, 0, {}, {}};
    EXPECT_EQ(layout_digest(selection, {&read, 1}).value(), *sum);
    const auto table = layout_digests(selection, {&read, 1});
    ASSERT_TRUE(table.ok());
    EXPECT_EQ(std::accumulate(table->begin(), table->end(), std::uint64_t{0}), *sum);
    sums.insert(sums.end(), table->begin(), table->end());
    for (auto& buffer : target) found.push_back(std::move(buffer));
  }
  unsetenv("HMC_CPU_THREADS");
  for (std::size_t i = 6; i < found.size(); ++i) EXPECT_EQ(found[i], found[i % 6]);
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], sums[i % (sums.size() / 3)]);
}

TEST(Layout, RunsAreAsLongAsBothSidesAllow) {
  const auto a = Layout::parse("L=2 B=4 H=4 N=32 (kv D=16) bf16"), slice = Layout::parse("L=2 B=4 H=2@2 N=32 (kv D=16) bf16"),
             smaller = Layout::parse("L=2 B=8 H=4 N=16 (kv D=16) bf16"), other = Layout::parse("L=2 B=4 N=32 H=4 (kv D=16) bf16");
  const std::vector<std::uint64_t> blocks{1, 3}, halves{1, 3, 5, 7};
  const auto length = [&](const Layout& target, const std::vector<std::uint64_t>& list) {
    const auto runs = layout_runs({*a, {blocks, 0}, target, {list, 0}, 64, 0, {}, {}});
    EXPECT_TRUE(runs.ok()) << runs.status().str();
    return runs->at(0).bytes;
  };
  EXPECT_EQ(length(*a, blocks), 4U * 32 * 64);      // a block
  EXPECT_EQ(length(*slice, blocks), 2U * 32 * 64);  // the slice's heads of a block
  EXPECT_EQ(length(*smaller, halves), 16U * 64);    // one head of a smaller block
  EXPECT_EQ(length(*other, blocks), 64U);           // K and V of one token
}

TEST(LayoutDigest, KeysAreOddAndDifferent) {
  const std::int16_t* const keys = dimension_keys();
  std::vector<bool> seen(1U << 16);
  for (std::size_t i = 0; i < 1U << 15; ++i) {
    const auto key = static_cast<std::uint16_t>(keys[i]);
    EXPECT_EQ(key % 2, 1);
    EXPECT_FALSE(seen[key]) << i;
    seen[key] = true;
  }
}

#if defined(__x86_64__)
TEST(LayoutTiles, VectorsGiveTheSameBits) {
  if (&tile_kernels() != &tile_avx2) GTEST_SKIP() << "no AVX2 on this machine";
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::size_t size = std::size_t{1} << random() % 3, rows = 1 + random() % 64, columns = 1 + random() % 70;
    const auto strides = [&](std::uint_fast32_t kind) {
      if (kind == 0) return TileStrides{columns * size + random() % 7, size};
      if (kind == 1) return TileStrides{size, rows * size + random() % 7};
      return TileStrides{size * 3, rows * size * 3};
    };
    const std::vector<std::byte> source = random_bytes(rows * columns * size * 4 + 1024, static_cast<std::uint32_t>(random()));
    const TileStrides from = strides(random() % 3), to = strides(random() % 3);
    std::vector<std::byte> a(source.size()), b(source.size());
    tile_baseline.copy(a.data() + 1, to, source.data() + 3, from, rows, columns, size);
    tile_avx2.copy(b.data() + 1, to, source.data() + 3, from, rows, columns, size);
    ASSERT_EQ(a, b);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j)
        ASSERT_EQ(0,
                  std::memcmp(a.data() + 1 + i * to.row + j * to.column, source.data() + 3 + i * from.row + j * from.column, size));
    }
    std::vector<std::uint32_t> x(rows, 5), y(rows, 5);
    tile_baseline.digest(x.data(), source.data() + 3, from, rows, columns, size, dimension_keys());
    tile_avx2.digest(y.data(), source.data() + 3, from, rows, columns, size, dimension_keys());
    ASSERT_EQ(x, y);
  }
}

TEST(LayoutTiles, StreamedRowsAreCopiedAndDigestedAlike) {
  EXPECT_FALSE(tile_baseline.stream(nullptr, nullptr, 0, nullptr, 0, 0, 0, 1, dimension_keys()));
  if (&tile_kernels() != &tile_avx2) GTEST_SKIP() << "no AVX2 on this machine";
  std::mt19937 random(4);
  int streamed = 0;
  for (int round = 0; round < 600; ++round) {
    const std::size_t size = std::size_t{1} << random() % 3, rows = random() % 65;
    const std::size_t bytes = random() % 4 == 0 ? size * (1 + random() % 70) : 32 * (1 + random() % 9);
    const std::size_t to_stride = bytes + (random() % 4 == 0 ? random() % 40 : 16 * (random() % 3)),
                      from_stride = bytes + random() % 40;
    const std::size_t at = random() % 4 == 0 ? random() % 64 : 16 * (random() % 4);
    const std::vector<std::byte> source = random_bytes(3 + (rows + 1) * from_stride, static_cast<std::uint32_t>(random()));
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    const std::size_t nbytes = at + (rows + 1) * to_stride;
    std::vector<Line> room((nbytes + 63) / 64);
    std::byte* const to = room.front().bytes;
    std::vector<std::byte> before = random_bytes(nbytes, static_cast<std::uint32_t>(random()));
    std::memcpy(to, before.data(), nbytes);
    std::vector<std::uint32_t> found(rows, 5), wanted(rows, 5);
    const bool digests = random() % 2 == 0;
    const bool done = tile_avx2.stream(digests ? found.data() : nullptr, to + at, to_stride, source.data() + 3, from_stride, rows,
                                       bytes, size, dimension_keys());
    tile_avx2.end_stream();
    EXPECT_EQ(done, bytes % 32 == 0 && to_stride % 16 == 0 && at % 16 == 0);
    if (done) {
      ++streamed;
      for (std::size_t row = 0; row < rows; ++row)
        std::memcpy(before.data() + at + row * to_stride, source.data() + 3 + row * from_stride, bytes);
      if (digests)
        tile_baseline.digest(wanted.data(), source.data() + 3, {from_stride, size}, rows, bytes / size, size, dimension_keys());
    }
    ASSERT_EQ(found, wanted);
    ASSERT_EQ(0, std::memcmp(to, before.data(), nbytes)) << round;  // nothing beside the rows either
  }
  EXPECT_GT(streamed, 100);
}

TEST(LayoutTiles, CastsGiveTheSameBits) {
  if (&tile_kernels() != &tile_avx2) GTEST_SKIP() << "no AVX2 on this machine";
  constexpr std::array types{DataType::f16,       DataType::bf16,        DataType::f32,
                             DataType::f8_e4m3fn, DataType::f8_e4m3fnuz, DataType::f8_e5m2};
  for (const DataType from : types) {
    std::vector<std::byte> source = random_bytes(65536 * 4, 9);
    for (std::size_t i = 0; i < 65536 && size_of(from) == 2; ++i) {  // every number
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(source.data() + 2 * i, &bits, 2);
    }
    for (const DataType to : types) {
      for (const float factor : {1.0F, 0.37F}) {
        std::vector<std::byte> a(65536 * 4), b(65536 * 4);
        tile_baseline.cast(a.data(), to, source.data(), from, 65521, factor);
        tile_avx2.cast(b.data(), to, source.data(), from, 65521, factor);
        std::size_t different = 0;
        for (std::size_t i = 0; i < 65521; ++i) {
          std::uint32_t x = 0, y = 0;
          std::memcpy(&x, a.data() + i * size_of(to), size_of(to));
          std::memcpy(&y, b.data() + i * size_of(to), size_of(to));
          const auto nan = [&](std::uint32_t bits) {  // its payload is free
            if (to == DataType::f32) return (bits & 0x7fffffffU) > 0x7f800000U;
            return to == DataType::f16 ? (bits & 0x7fffU) > 0x7c00U : to == DataType::bf16 && (bits & 0x7fffU) > 0x7f80U;
          };
          different += x != y && !(nan(x) && nan(y)) ? 1U : 0U;
        }
        EXPECT_EQ(different, 0U) << name_of(from) << " to " << name_of(to);
      }
    }
  }
}
#endif

}  // namespace
}  // namespace hmc
