// Registration, import, publication and their ends.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "support.h"

namespace hmc {
namespace {

using namespace testing;

class Buffers : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(pair_.ab.valid()); }
  Pair pair_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Transports, Buffers, ::testing::ValuesIn(peer_transports()), [](const auto& p) { return p.param; });

TEST_P(Buffers, StaleForgedAndForeignDescriptors) {
  const auto buffer = *pair_.b.buffer(1000, Device::cpu(), Access::read);
  const auto good = *buffer.descriptor();
  const auto code = [&](const Descriptor& d) { return pair_.ab.import(d, soon()).status().code(); };
  EXPECT_EQ(code(good), Code::ok);
  auto bad = good;
  bad.nonce[1] ^= 1;
  EXPECT_EQ(code(bad), Code::authentication);
  bad = good;
  bad.access = Access::read_write;
  EXPECT_EQ(code(bad), Code::authentication);
  bad = good;
  bad.size = 1001;
  EXPECT_EQ(code(bad), Code::authentication);
  bad = good;
  bad.buffer_id = 999;
  EXPECT_EQ(code(bad), Code::authentication);
  bad = good;
  bad.generation += 1;
  EXPECT_EQ(code(bad), Code::authentication);
  bad = good;
  bad.context_id[0] ^= 1;
  EXPECT_EQ(code(bad), Code::invalid_argument);
  EXPECT_EQ(code(*pair_.a.buffer(10)->descriptor()), Code::invalid_argument);
  bad = good;
  bad.device = "cuda:5";
  const Code elsewhere = code(bad);  // by whether this build knows the vendor
  EXPECT_TRUE(elsewhere == Code::unsupported || elsewhere == Code::invalid_argument);
  const auto round_trip = Descriptor::parse(good.serialise());
  ASSERT_TRUE(round_trip.ok());
  EXPECT_EQ(code(*round_trip), Code::ok);
  HMC_ASSERT_OK(buffer.close(soon()));
  EXPECT_EQ(code(good), Code::stale);
  EXPECT_EQ(buffer.descriptor().status().code(), Code::closed);
  const auto next = *pair_.b.buffer(1000, Device::cpu(), Access::read);  // the same slot, a new generation
  EXPECT_EQ(code(good), Code::stale);
  EXPECT_EQ(code(*next.descriptor()), Code::ok);
  EXPECT_TRUE(pair_.ab.alive());  // nothing of this ends a peer
}

TEST_P(Buffers, CloseRevokesImporters) {
  const auto source = *pair_.a.buffer(1000);
  const auto target = *pair_.b.buffer(1000);
  const auto remote = *pair_.ab.import(*target.descriptor(), soon());
  const auto again = *pair_.ab.import(*target.descriptor(), soon());
  EXPECT_TRUE(remote.alive());
  HMC_ASSERT_OK(pair_.ab.put(source, remote)->wait(soon()));
  HMC_ASSERT_OK(target.close(soon()));
  HMC_ASSERT_OK(target.close(soon()));
  EXPECT_FALSE(remote.alive());
  EXPECT_FALSE(again.alive());
  EXPECT_EQ(pair_.ab.put(source, remote).status().code(), Code::stale);
  EXPECT_EQ(pair_.ab.get(source, again).status().code(), Code::stale);
  EXPECT_TRUE(pair_.ab.alive());
}

TEST_P(Buffers, NothingLandsAfterClose) {
  constexpr std::size_t size = 8 << 20;
  const auto source = *pair_.a.buffer(size);
  for (int round = 0; round < 8; ++round) {
    auto memory = pattern(size, 1);
    const auto target = round % 2 == 0 ? *pair_.b.register_memory(*Memory::wrap(memory.data(), size)) : *pair_.b.buffer(size);
    const auto held = target.memory();
    auto* bytes = static_cast<std::byte*>(held.data());
    const auto remote = *pair_.ab.import(*target.descriptor(), soon());
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      std::uint64_t seed = 10;
      while (!stop.load()) {
        const auto work = pair_.ab.put(source, remote, {{}, seed % 2 == 0 ? Complete::local : Complete::remote});
        if (!work.ok()) {
          EXPECT_EQ(work.status().code(), Code::stale) << work.status().str();
          break;
        }
        const Status done = work->wait(soon());
        EXPECT_TRUE(done.ok() || done.code() == Code::stale) << done.str();
        bytes_of(source)[seed % size] = static_cast<std::byte>(seed);
        ++seed;
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
    HMC_ASSERT_OK(target.close(soon()));
    fill_pattern({bytes, size}, 77);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(first_mismatch({bytes, size}, 77), -1);
    stop = true;
    writer.join();
  }
}

TEST_P(Buffers, DroppedHandlesReleaseEverything) {
  std::atomic<int> freed{0};
  auto memory = pattern(5000, 1);
  {
    auto target = *pair_.b.register_memory(*Memory::wrap(memory.data(), memory.size(), [&] { ++freed; }));
    auto remote = *pair_.ab.import(*target.descriptor(), soon());
    const auto source = *pair_.a.buffer(5000);
    HMC_ASSERT_OK(pair_.ab.put(source, remote)->wait(soon()));
    target = ConnBuffer();  // importers are told; the memory is let go once they have answered
    while (remote.alive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (freed.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(freed.load(), 1);
}

TEST_P(Buffers, RegistrationCache) {
  const auto memory = *Memory::allocate(8192);
  const auto first = *pair_.a.register_memory(memory);
  const auto second = *pair_.a.register_memory(memory);
  const auto slice = *pair_.a.register_memory(*memory.slice(4096, 100));
  const auto reading = *pair_.a.register_memory(memory, Access::read);
  auto counters = pair_.a.counters();
  EXPECT_EQ(counters["registration_cache.hits"], 1U);
  EXPECT_EQ(counters["registration_cache.misses"], 3U);
  EXPECT_NE(first.descriptor()->buffer_id, second.descriptor()->buffer_id);
  // One's end is not the other's.
  const auto remote = *pair_.ba.import(*second.descriptor(), soon());
  HMC_ASSERT_OK(first.close(soon()));
  EXPECT_TRUE(remote.alive());
  const auto data = *pair_.b.buffer(8192);
  fill_pattern(span_of(data), 4);
  HMC_ASSERT_OK(pair_.ba.put(data, remote)->wait(soon()));
  EXPECT_EQ(first_mismatch(span_of(second), 4), -1);
  // Other memory at the same address is never taken for the old.
  for (int i = 0; i < 50; ++i) {
    const auto buffer = *pair_.a.buffer(4096);
    fill_pattern(span_of(buffer), static_cast<std::uint64_t>(i));
    const auto imported = *pair_.ba.import(*buffer.descriptor(), soon());
    const auto back = *pair_.b.buffer(4096);
    HMC_ASSERT_OK(pair_.ba.get(back, imported)->wait(soon()));
    ASSERT_EQ(first_mismatch(span_of(back), static_cast<std::uint64_t>(i)), -1);
    if (i % 2 == 0) HMC_ASSERT_OK(buffer.close(soon()));
  }
}

TEST_P(Buffers, PublishAndLookup) {
  const auto buffer = *pair_.b.buffer(100);
  HMC_ASSERT_OK(pair_.b.publish("kv", buffer));
  EXPECT_EQ(pair_.b.publish("kv", buffer).code(), Code::invalid_argument);
  EXPECT_EQ(pair_.b.publish("", buffer).code(), Code::invalid_argument);
  EXPECT_EQ(pair_.b.publish(std::string(256, 'x'), buffer).code(), Code::invalid_argument);
  HMC_EXPECT_OK(pair_.b.publish(std::string(255, 'x'), buffer));
  EXPECT_EQ(pair_.b.publish("slice", *buffer.slice(1, 2)).code(), Code::invalid_argument);
  EXPECT_EQ(pair_.b.publish("foreign", *pair_.a.buffer(3)).code(), Code::invalid_argument);
  EXPECT_EQ(pair_.b.unpublish("nothing").code(), Code::invalid_argument);
  const auto found = pair_.ab.lookup("kv", soon());
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_EQ(found->size(), 100U);
  HMC_ASSERT_OK(pair_.b.unpublish("kv"));
  EXPECT_EQ(pair_.ab.lookup("kv", soon(0.03)).status().code(), Code::timeout);
  EXPECT_TRUE(found->alive());
  HMC_ASSERT_OK(buffer.close(soon()));
  EXPECT_EQ(pair_.ab.lookup(std::string(255, 'x'), soon(0.03)).status().code(), Code::timeout);
  EXPECT_EQ(pair_.b.publish("late", buffer).code(), Code::closed);
  EXPECT_EQ(pair_.ab.lookup("").status().code(), Code::invalid_argument);
}

TEST_P(Buffers, LookupWaits) {
  std::thread publisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const auto buffer = *pair_.b.buffer(321);
    HMC_EXPECT_OK(pair_.b.publish("later", buffer));
    HMC_EXPECT_OK(pair_.ba.wait_notify(1, 1, soon()));
  });
  const auto found = pair_.ab.lookup("later", soon());
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_EQ(found->size(), 321U);
  HMC_EXPECT_OK(pair_.ab.notify(1));
  publisher.join();
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    HMC_EXPECT_OK(pair_.b.close(soon()));
  });
  const auto never = pair_.ab.lookup("never", soon());
  EXPECT_EQ(never.status().code(), Code::closed) << never.status().str();
  ender.join();
}

TEST_P(Buffers, PublishedBufferOutlivesItsHandle) {
  HMC_ASSERT_OK(pair_.b.publish("kept", *pair_.b.buffer(77)));
  const auto found = pair_.ab.lookup("kept", soon());
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_EQ(found->size(), 77U);
  HMC_ASSERT_OK(pair_.b.unpublish("kept"));
  while (found->alive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_P(Buffers, ImportFromManyThreads) {
  const auto buffer = *pair_.b.buffer(3 << 20);
  fill_pattern(span_of(buffer), 6);
  const auto descriptor = *buffer.descriptor();
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        const auto remote = pair_.ab.import(descriptor, soon());
        ASSERT_TRUE(remote.ok()) << remote.status().str();
        const auto into = *pair_.a.buffer(1000);
        HMC_ASSERT_OK(pair_.ab.get(into, *remote->slice(5, 1000))->wait(soon()));
        EXPECT_EQ(std::memcmp(bytes_of(into), bytes_of(buffer) + 5, 1000), 0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  HMC_ASSERT_OK(buffer.close(soon()));
}

TEST_P(Buffers, EmptyBuffer) {
  const auto empty = *pair_.b.buffer(0);
  const auto remote = pair_.ab.import(*empty.descriptor(), soon());
  ASSERT_TRUE(remote.ok()) << remote.status().str();
  const auto source = *pair_.a.buffer(0);
  HMC_ASSERT_OK(pair_.ab.put(source, *remote, {6, Complete::remote})->wait(soon()));
  HMC_ASSERT_OK(pair_.ba.wait_notify(6, 1, soon()));
  HMC_ASSERT_OK(empty.close(soon()));
}

TEST(BufferHandles, EmptyOnes) {
  const ConnBuffer none;
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(none.size(), 0U);
  EXPECT_TRUE(none.closed());
  EXPECT_FALSE(none.memory().valid());
  EXPECT_EQ(none.slice(0, 0).status().code(), Code::invalid_argument);
  EXPECT_EQ(none.descriptor().status().code(), Code::invalid_argument);
  HMC_EXPECT_OK(none.close());
  const RemoteBuffer far;
  EXPECT_FALSE(far.alive());
  EXPECT_EQ(far.slice(0, 0).status().code(), Code::invalid_argument);
  EXPECT_EQ(BlockBatch().blocks(), 0U);
  const auto context = make_context();
  EXPECT_EQ(context.register_memory(Memory()).status().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace hmc
