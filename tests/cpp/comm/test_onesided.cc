// put and get over every transport: every byte, and the bytes around them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "support.h"

namespace hmc {
namespace {

using namespace testing;

class OneSided : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(pair_.ab.valid()); }
  RemoteBuffer import(const ConnBuffer& buffer) {
    auto remote = pair_.ab.import(*buffer.descriptor(), soon());
    EXPECT_TRUE(remote.ok()) << remote.status().str();
    return remote.ok() ? *remote : RemoteBuffer();
  }
  Pair pair_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Transports, OneSided, ::testing::ValuesIn(peer_transports()), [](const auto& p) { return p.param; });

TEST_P(OneSided, PutAndGetEverySizeEveryByteWithGuards) {
  constexpr std::size_t guard = 129;
  for (const std::size_t size : awkward_sizes()) {
    SCOPED_TRACE(size);
    const auto source = *pair_.a.buffer(size + 2 * guard);
    const auto target = *pair_.b.buffer(size + 2 * guard);
    const auto back = *pair_.a.buffer(size + 2 * guard);
    fill_pattern(span_of(source), size + 1);
    fill_pattern(span_of(target), size + 2);
    fill_pattern(span_of(back), size + 3);
    const auto remote = import(target);
    ASSERT_TRUE(remote.valid());
    const auto put = pair_.ab.put(*source.slice(guard, size), *remote.slice(guard, size));
    ASSERT_TRUE(put.ok()) << put.status().str();
    HMC_ASSERT_OK(put->wait(soon()));
    EXPECT_EQ(std::memcmp(bytes_of(target) + guard, bytes_of(source) + guard, size), 0);
    for (std::size_t i = 0; i < guard; ++i) {
      ASSERT_EQ(bytes_of(target)[i], pattern_byte(i, size + 2)) << "before, " << i;
      ASSERT_EQ(bytes_of(target)[guard + size + i], pattern_byte(guard + size + i, size + 2)) << "after, " << i;
    }
    const auto get = pair_.ab.get(*back.slice(guard / 3, size), *remote.slice(guard, size));
    ASSERT_TRUE(get.ok()) << get.status().str();
    HMC_ASSERT_OK(get->wait(soon()));
    EXPECT_EQ(std::memcmp(bytes_of(back) + guard / 3, bytes_of(source) + guard, size), 0);
    for (std::size_t i = 0; i < guard / 3; ++i) ASSERT_EQ(bytes_of(back)[i], pattern_byte(i, size + 3));
    for (std::size_t i = guard / 3 + size; i < back.size(); ++i) ASSERT_EQ(bytes_of(back)[i], pattern_byte(i, size + 3));
  }
}

TEST_P(OneSided, ForeignMemoryOnBothSides) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, std::size_t{3} << 20}) {
    auto here = pattern(size, 1), there = pattern(size, 2);
    const auto source = *pair_.a.register_memory(*Memory::wrap(here.data(), size));
    const auto target = *pair_.b.register_memory(*Memory::wrap(there.data(), size));
    const auto remote = import(target);
    ASSERT_TRUE(remote.valid());
    HMC_ASSERT_OK(pair_.ab.put(source, remote)->wait(soon()));
    EXPECT_EQ(first_mismatch(there, 1), -1);
    fill_pattern(there, 3);
    HMC_ASSERT_OK(pair_.ab.get(source, remote)->wait(soon()));
    EXPECT_EQ(first_mismatch(here, 3), -1);
    HMC_ASSERT_OK(target.close(soon()));
    HMC_ASSERT_OK(source.close(soon()));
  }
}

TEST_P(OneSided, ManyAtOnceFromManyThreads) {
  constexpr std::size_t count = 64, size = 40001, threads = 4;
  const auto source = *pair_.a.buffer(count * size);
  const auto target = *pair_.b.buffer(count * size);
  fill_pattern(span_of(source), 9);
  const auto remote = import(target);
  std::vector<std::thread> pool;
  for (std::size_t t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      std::vector<Work> works;
      for (std::size_t i = t; i < count; i += threads) {
        auto work = pair_.ab.put(*source.slice(i * size, size), *remote.slice(i * size, size), {i, Complete::local});
        ASSERT_TRUE(work.ok()) << work.status().str();
        works.push_back(*work);
      }
      HMC_EXPECT_OK(wait_all(works, soon()));
    });
  }
  for (std::size_t i = 0; i < count; ++i) {
    HMC_EXPECT_OK(pair_.ba.wait_notify(i, 1, soon()));
    ASSERT_EQ(std::memcmp(bytes_of(target) + i * size, bytes_of(source) + i * size, size), 0) << i;
  }
  for (auto& thread : pool) thread.join();
}

TEST_P(OneSided, CountersAndPathTellWhatMoved) {
  const auto source = *pair_.a.buffer(5000);
  const auto target = *pair_.b.buffer(5000);
  const auto remote = import(target);
  HMC_ASSERT_OK(pair_.ab.put(source, remote)->wait(soon()));
  HMC_ASSERT_OK(pair_.ab.get(*source.slice(0, 7), *remote.slice(1, 7))->wait(soon()));
  auto counters = pair_.a.counters();
  EXPECT_EQ(counters["put.bytes." + GetParam()], 5000U);
  EXPECT_EQ(counters["get.bytes." + GetParam()], 7U);
  const auto path = pair_.ab.path();
  ASSERT_TRUE(path.ok());
  EXPECT_EQ(path->bytes_put, 5000U);
  EXPECT_EQ(path->bytes_got, 7U);
  EXPECT_EQ(path->transport, GetParam());
}

TEST_P(OneSided, BlocksOverManyPairs) {
  std::mt19937_64 random(7);
  constexpr std::size_t pairs = 33, block = 1000, per_pair = 40, capacity = 64;
  std::vector<ConnBuffer> locals, targets;
  std::vector<std::vector<std::uint64_t>> local_offsets(pairs), remote_offsets(pairs);
  std::vector<BlockPair> list;
  for (std::size_t p = 0; p < pairs; ++p) {
    locals.push_back(*pair_.a.buffer(capacity * block + 77));
    targets.push_back(*pair_.b.buffer(capacity * block + 99));
    fill_pattern(span_of(locals[p]), p);
    fill_pattern(span_of(targets[p]), 1000 + p);
    std::vector<std::uint64_t> order(capacity);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t i = 0; i < (p == 5 ? 0 : per_pair); ++i) local_offsets[p].push_back(order[i] * block + p % 3);
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t i = 0; i < (p == 5 ? 0 : per_pair); ++i) remote_offsets[p].push_back(order[i] * block + p % 5);
    list.push_back({*locals[p].slice(11, locals[p].size() - 11), *import(targets[p]).slice(13, targets[p].size() - 13),
                    local_offsets[p], remote_offsets[p]});
  }
  const auto batch = pair_.ab.prepare_blocks(list, block);
  ASSERT_TRUE(batch.ok()) << batch.status().str();
  EXPECT_EQ(batch->blocks(), (pairs - 1) * per_pair);
  EXPECT_EQ(batch->bytes(), (pairs - 1) * per_pair * block);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t p = 0; p < pairs; ++p) fill_pattern(span_of(locals[p]), p + 100 * static_cast<std::size_t>(round));
    const auto work = pair_.ab.put_blocks(*batch, {99, Complete::remote});
    ASSERT_TRUE(work.ok()) << work.status().str();
    HMC_ASSERT_OK(pair_.ba.wait_notify(99, 1, soon()));
    HMC_ASSERT_OK(work->wait(soon()));
    for (std::size_t p = 0; p < pairs; ++p) {
      auto expected = pattern(targets[p].size(), 1000 + p);
      for (std::size_t i = 0; i < local_offsets[p].size(); ++i) {
        std::memcpy(expected.data() + 13 + remote_offsets[p][i], bytes_of(locals[p]) + 11 + local_offsets[p][i], block);
      }
      ASSERT_EQ(std::memcmp(expected.data(), bytes_of(targets[p]), expected.size()), 0) << "pair " << p;
    }
  }
  // Back again: what lies at the remote blocks.
  for (std::size_t p = 0; p < pairs; ++p) {
    fill_pattern(span_of(targets[p]), 5000 + p);
    fill_pattern(span_of(locals[p]), 6000 + p);
  }
  HMC_ASSERT_OK(pair_.ab.get_blocks(*batch)->wait(soon()));
  for (std::size_t p = 0; p < pairs; ++p) {
    auto expected = pattern(locals[p].size(), 6000 + p);
    for (std::size_t i = 0; i < local_offsets[p].size(); ++i) {
      std::memcpy(expected.data() + 11 + local_offsets[p][i], bytes_of(targets[p]) + 13 + remote_offsets[p][i], block);
    }
    ASSERT_EQ(std::memcmp(expected.data(), bytes_of(locals[p]), expected.size()), 0) << "pair " << p;
  }
}

TEST_P(OneSided, FenceOrdersWhatFollows) {
  constexpr std::size_t size = 3 << 20;
  const auto source = *pair_.a.buffer(size);
  const auto target = *pair_.b.buffer(size);
  const auto remote = import(target);
  HMC_ASSERT_OK(pair_.ab.fence());  // nothing outstanding
  for (std::uint64_t round = 0; round < 8; ++round) {
    fill_pattern(span_of(source), round);
    auto put = pair_.ab.put(source, remote, {{}, round % 2 == 0 ? Complete::local : Complete::remote});
    ASSERT_TRUE(put.ok()) << put.status().str();
    HMC_ASSERT_OK(pair_.ab.fence());
    HMC_ASSERT_OK(pair_.ab.notify(round));
    HMC_ASSERT_OK(pair_.ba.wait_notify(round, 1, soon()));
    ASSERT_EQ(first_mismatch(span_of(target), round), -1);
    HMC_ASSERT_OK(put->wait(soon()));
  }
}

TEST_P(OneSided, FenceOrdersSendsToo) {
  constexpr std::size_t size = 3 << 20;
  auto far = pattern(size, 0);
  const auto source = *pair_.a.buffer(size);
  const auto target = *pair_.b.register_memory(*Memory::wrap(far.data(), size));
  const auto remote = import(target);
  for (std::uint64_t round = 1; round < 6; ++round) {
    fill_pattern(span_of(source), round);
    auto put = pair_.ab.put(source, remote, {{}, Complete::local});
    ASSERT_TRUE(put.ok()) << put.status().str();
    HMC_ASSERT_OK(pair_.ab.fence());
    std::uint64_t first = round, second = round + 100, got = 0;
    auto one = pair_.ab.isend(MemoryView(&first, sizeof first), 4);
    ASSERT_TRUE(one.ok()) << one.status().str();
    auto two = pair_.ab.isend(MemoryView(&second, sizeof second), 4);
    ASSERT_TRUE(two.ok()) << two.status().str();
    HMC_ASSERT_OK(pair_.ba.recv(MemoryView(&got, sizeof got), 4, soon()).status());
    ASSERT_EQ(got, round);
    ASSERT_EQ(first_mismatch(far, round), -1);
    HMC_ASSERT_OK(pair_.ba.recv(MemoryView(&got, sizeof got), 4, soon()).status());
    ASSERT_EQ(got, round + 100);
    HMC_ASSERT_OK(one->wait(soon()));
    HMC_ASSERT_OK(two->wait(soon()));
    HMC_ASSERT_OK(put->wait(soon()));
  }
}

TEST_P(OneSided, MoreThanFourGigabytes) {
  constexpr std::size_t size = (std::size_t{4} << 30) + 12345;
  const long pages = sysconf(_SC_AVPHYS_PAGES);
  if (pages < 0 || static_cast<std::size_t>(pages) * 4096 < 3 * size || std::getenv("HMC_TEST_SMALL") != nullptr) {
    GTEST_SKIP() << "needs " << 3 * size << " bytes of free memory";
  }
  const auto source = *pair_.a.buffer(size);
  const auto target = *pair_.b.buffer(size);
  const auto check = [&](std::size_t at, std::uint64_t seed) {
    for (std::size_t i = 0; i < 4096; ++i) ASSERT_EQ(bytes_of(target)[at + i], pattern_byte(i, seed)) << at + i;
  };
  // Untouched pages stay untouched: every 64 MiB, and both sides of the 4 GiB line.
  std::vector<std::size_t> places{(std::size_t{4} << 30) - 2048, size - 4096};
  for (std::size_t at = 0; at + (2 << 20) < size; at += std::size_t{64} << 20) places.push_back(at + (1 << 20) + 17);
  for (const std::size_t at : places) fill_pattern({bytes_of(source) + at, 4096}, at);
  const auto remote = import(target);
  const auto work = pair_.ab.put(source, remote, {1, Complete::remote});
  ASSERT_TRUE(work.ok()) << work.status().str();
  HMC_ASSERT_OK(work->wait(soon(150)));  // so many bytes take tens of seconds where others have the cores
  HMC_ASSERT_OK(pair_.ba.wait_notify(1, 1, soon()));
  for (const std::size_t at : places) check(at, at);
}

TEST_P(OneSided, RefusesWhatCannotBe) {
  const auto source = *pair_.a.buffer(100);
  const auto target = *pair_.b.buffer(100);
  const auto readable = *pair_.b.buffer(100, Device::cpu(), Access::read);
  const auto remote = import(target);
  const auto read_only = import(readable);
  const auto code = [](const auto& result) { return result.status().code(); };
  EXPECT_EQ(code(pair_.ab.put(*source.slice(0, 99), remote)), Code::invalid_argument);
  EXPECT_EQ(code(pair_.ab.put(ConnBuffer(), remote)), Code::invalid_argument);
  EXPECT_EQ(code(pair_.ab.put(source, RemoteBuffer())), Code::invalid_argument);
  EXPECT_EQ(code(pair_.ab.put(target, remote)), Code::invalid_argument);  // of the other Context
  EXPECT_EQ(code(pair_.ba.put(source, remote)), Code::invalid_argument);  // of another peer
  EXPECT_EQ(code(pair_.ab.put(source, read_only)), Code::invalid_argument);
  EXPECT_EQ(code(Peer().put(source, remote)), Code::invalid_argument);
  EXPECT_EQ(code(source.slice(1, 100)), Code::invalid_argument);
  EXPECT_EQ(code(source.slice(101, 0)), Code::invalid_argument);
  EXPECT_EQ(code(remote.slice(~std::size_t{0}, 2)), Code::invalid_argument);
  EXPECT_TRUE(source.slice(100, 0).ok());
  EXPECT_EQ(code(pair_.ab.put(source, remote, {1ULL << 63, Complete::remote})), Code::invalid_argument);
  const std::vector<std::byte> long_payload(max_notify_payload + 1);
  EXPECT_EQ(code(pair_.ab.put(source, remote, {std::span<const std::byte>(long_payload), Complete::remote})),
            Code::invalid_argument);
  HMC_EXPECT_OK(pair_.ab.get(source, read_only)->wait(soon()));
  const std::uint64_t inside[] = {0, 60}, outside[] = {0, 61};
  const auto blocks = [&](std::span<const std::uint64_t> local, std::span<const std::uint64_t> far, std::size_t block,
                          const RemoteBuffer& where) {
    const BlockPair pair{source, where, local, far};
    return pair_.ab.prepare_blocks({&pair, 1}, block);
  };
  EXPECT_TRUE(blocks(inside, inside, 40, remote).ok());
  EXPECT_EQ(code(blocks(outside, inside, 40, remote)), Code::invalid_argument);
  EXPECT_EQ(code(blocks(inside, outside, 40, remote)), Code::invalid_argument);
  EXPECT_EQ(code(blocks(inside, {outside, 1}, 40, remote)), Code::invalid_argument);
  EXPECT_EQ(code(blocks(inside, inside, 0, remote)), Code::invalid_argument);
  EXPECT_EQ(code(blocks(inside, inside, 101, remote)), Code::invalid_argument);
  const auto reading = blocks(inside, inside, 40, read_only);
  ASSERT_TRUE(reading.ok());
  EXPECT_EQ(code(pair_.ab.put_blocks(*reading)), Code::invalid_argument);
  HMC_EXPECT_OK(pair_.ab.get_blocks(*reading)->wait(soon()));
  EXPECT_EQ(code(pair_.ab.put_blocks(BlockBatch())), Code::invalid_argument);
  const auto self = *pair_.a.connect(pair_.a.addresses().front(), soon());
  const auto writing = blocks(inside, inside, 40, remote);
  ASSERT_TRUE(writing.ok());
  EXPECT_EQ(code(self.put_blocks(*writing)), Code::invalid_argument);  // of another peer
  EXPECT_EQ(code(self.get_blocks(*writing)), Code::invalid_argument);
  EXPECT_EQ(code(Peer().put_blocks(*writing)), Code::invalid_argument);
  HMC_EXPECT_OK(source.close(soon()));
  EXPECT_EQ(code(pair_.ab.put(source, remote)), Code::closed);
}

TEST_P(OneSided, ZeroBytesStillNotify) {
  const auto source = *pair_.a.buffer(10);
  const auto target = *pair_.b.buffer(10);
  const auto remote = import(target);
  HMC_ASSERT_OK(pair_.ab.put(*source.slice(10, 0), *remote.slice(3, 0), {4, Complete::remote})->wait(soon()));
  HMC_ASSERT_OK(pair_.ba.wait_notify(4, 1, soon()));
  const BlockPair pair{source, remote, {}, {}};
  const auto batch = pair_.ab.prepare_blocks({&pair, 1}, 4);
  ASSERT_TRUE(batch.ok());
  HMC_ASSERT_OK(pair_.ab.put_blocks(*batch, {5, Complete::remote})->wait(soon()));
  HMC_ASSERT_OK(pair_.ba.wait_notify(5, 1, soon()));
}

TEST_P(OneSided, CancelTellsTheTruth) {
  constexpr std::size_t size = 48 << 20;
  auto far = pattern(size, 2);
  const auto source = *pair_.a.buffer(size);
  const auto target = *pair_.b.register_memory(*Memory::wrap(far.data(), size));
  fill_pattern(span_of(source), 1);
  const auto remote = import(target);
  int cancelled = 0;
  for (int round = 0; round < 6; ++round) {
    fill_pattern(far, 2);
    const auto work = pair_.ab.put(source, remote);
    ASSERT_TRUE(work.ok());
    const Status stopped = work->cancel();
    const Status outcome = work->wait(soon());
    if (stopped.ok()) {
      ++cancelled;
      EXPECT_EQ(outcome.code(), Code::cancelled);
      const auto seen = far;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(seen, far) << "written after a cancel that said ok";
    } else {
      HMC_EXPECT_OK(outcome);
      EXPECT_EQ(first_mismatch(far, 1), -1);
    }
  }
  RecordProperty("cancelled", cancelled);
}

TEST(OneSidedSelf, OwnBuffersThroughSelf) {
  const auto context = make_context();
  const auto peer = context.connect(context.addresses().front(), soon());
  ASSERT_TRUE(peer.ok()) << peer.status().str();
  EXPECT_TRUE(peer->alive());
  EXPECT_TRUE(context.peers().empty());
  const auto source = *context.buffer(70000);
  const auto target = *context.buffer(70000);
  fill_pattern(span_of(source), 3);
  const auto remote = peer->import(*target.descriptor(), soon());
  ASSERT_TRUE(remote.ok()) << remote.status().str();
  HMC_ASSERT_OK(peer->put(source, *remote, {8, Complete::remote})->wait(soon()));
  HMC_ASSERT_OK(peer->wait_notify(8, 1, soon()));
  EXPECT_EQ(first_mismatch(span_of(target), 3), -1);
  const auto payload = pattern(9, 9);
  HMC_ASSERT_OK(peer->notify(std::span<const std::byte>(payload)));
  const auto got = peer->notifications(soon());
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->size(), 1U);
  EXPECT_EQ((*got)[0].payload, payload);
  HMC_ASSERT_OK(target.close(soon()));
  EXPECT_FALSE(remote->alive());
  EXPECT_EQ(peer->put(source, *remote).status().code(), Code::stale);
}

// What is taken returns its credit, as with every peer: the window is of what is queued.
TEST(OneSidedSelf, PayloadsThroughSelfHaveNoEnd) {
  const auto context = make_context();
  const auto peer = *context.connect(context.addresses().front(), soon());
  const auto source = *context.buffer(64);
  const auto target = *context.buffer(64);
  const auto remote = *peer.import(*target.descriptor(), soon());
  const auto payload = pattern(3, 3);
  const std::span<const std::byte> bytes(payload);
  for (int i = 0; i < 3000; ++i) {  // more than the window in all
    HMC_ASSERT_OK(peer.put(source, remote, {bytes, Complete::remote})->wait(soon()));
    HMC_ASSERT_OK(peer.notify(bytes));
    std::size_t seen = 0;
    while (seen < 2) {
      const auto got = peer.notifications(soon());
      ASSERT_TRUE(got.ok()) << got.status().str();
      ASSERT_FALSE(got->empty()) << i;
      seen += got->size();
    }
  }
  // Those held back for credit go on when there is some.
  std::vector<Work> works;
  for (int i = 0; i < 6000; ++i) works.push_back(*peer.put(source, remote, {bytes, Complete::remote}));
  EXPECT_FALSE(works.back().done());
  for (std::size_t seen = 0; seen < works.size();) {
    const auto got = peer.notifications(soon());
    ASSERT_TRUE(got.ok()) << got.status().str();
    ASSERT_FALSE(got->empty()) << seen;
    seen += got->size();
  }
  HMC_ASSERT_OK(wait_all(works, soon()));
}

}  // namespace
}  // namespace hmc
