// The rings on their own: every wrap-around, and every byte that a producer could write instead.
#include <deque>
#include <random>

#include "testing.h"
#include "transport/shm/bulk_ring.h"
#include "transport/shm/signal_ring.h"

namespace hmc::shm {
namespace {

using testing::pattern;
using testing::same_bytes;

struct SignalRing {
  static constexpr std::size_t bytes = min_signal_bytes;
  static constexpr std::uint64_t key = 0x1234'5678'9ABC'DEF1ULL;
  struct alignas(line_bytes) Line {
    std::byte bytes[line_bytes];
  };

  SignalRing() : memory(bytes / line_bytes) {
    producer = SignalProducer(data(), bytes, key, &head);
    consumer = SignalConsumer(data(), bytes, key, &head);
  }
  std::byte* data() { return memory.data()->bytes; }
  void push(const Bytes& signal) {
    ASSERT_TRUE(producer.has_room(signal.size()));
    const std::size_t cut = signal.size() / 3;
    producer.push(ByteSpan(signal).first(cut), ByteSpan(signal).subspan(cut));
  }
  Bytes take() {
    ByteSpan signal;
    EXPECT_EQ(consumer.find(signal), SignalConsumer::Next::signal);
    Bytes taken(signal.begin(), signal.end());
    consumer.pass();
    consumer.publish();
    return taken;
  }
  bool empty() {
    ByteSpan signal;
    return !consumer.ready() && consumer.find(signal) == SignalConsumer::Next::none;
  }

  std::vector<Line> memory;
  std::atomic<std::uint64_t> head{0};
  SignalProducer producer;
  SignalConsumer consumer;
};

TEST(ShmSignalRing, WrapsAtEveryOffset) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{48}, std::size_t{49}, std::size_t{2048}, max_signal - 1, max_signal}) {
    SignalRing ring;
    std::vector<bool> tried(SignalRing::bytes / line_bytes);
    for (std::size_t left = tried.size(); left > 0;) {
      const std::size_t offset = ring.producer.end_of(0) / line_bytes % tried.size();  // plus one line, at every place
      if (tried[offset]) {
        ring.push({});
        ring.take();
        continue;
      }
      tried[offset] = true;
      --left;
      const Bytes large = pattern(size, offset);
      const Bytes small = pattern(offset % 48, offset + 7);
      ring.push(large);
      ring.push(small);
      ASSERT_TRUE(same_bytes(ring.take(), large)) << size << " at " << offset;
      ASSERT_TRUE(same_bytes(ring.take(), small)) << size << " at " << offset;
      ASSERT_TRUE(ring.empty());
    }
  }
}

TEST(ShmSignalRing, FullAndEmptyInAnyRhythm) {
  SignalRing ring;
  std::mt19937_64 random(17);
  std::deque<Bytes> expected;
  std::size_t pushed = 0;
  bool was_full = false;
  for (int step = 0; step < 60'000; ++step) {
    const std::size_t limit = random() % 8 == 0 ? max_signal : 300;
    if (random() % 100 < (step / 2000 % 2 == 0 ? 70U : 30U)) {
      Bytes signal = pattern(random() % (limit + 1), pushed);
      if (!ring.producer.has_room(signal.size())) {
        was_full = true;
        continue;
      }
      ring.push(signal);
      ++pushed;
      expected.push_back(std::move(signal));
    } else if (expected.empty()) {
      ASSERT_TRUE(ring.empty());
    } else {
      ASSERT_TRUE(same_bytes(ring.take(), expected.front()));
      expected.pop_front();
    }
  }
  EXPECT_TRUE(was_full);
}

// After everything is consumed, the largest signal fits at every position: nobody waits for ever for room.
TEST(ShmSignalRing, AnEmptyRingTakesTheLargest) {
  SignalRing ring;
  for (std::size_t i = 0; i < 3 * SignalRing::bytes / line_bytes; ++i) {
    ASSERT_TRUE(ring.producer.has_room(max_signal)) << i;
    ring.push(pattern(5, i));
    ASSERT_EQ(ring.take(), pattern(5, i));
  }
}

TEST(ShmSignalRing, ForgedRecordsAreRefused) {
  std::mt19937_64 random(3);
  for (const std::size_t lead : {std::size_t{0}, std::size_t{2000}, std::size_t{4092}, std::size_t{4095}}) {
    SignalRing ring;
    for (std::size_t i = 0; i < lead; ++i) {
      ring.push(pattern(1, i));
      ring.take();
    }
    auto* header = reinterpret_cast<RecordHeader*>(ring.data() + lead * line_bytes);
    const std::size_t contiguous = SignalRing::bytes - lead * line_bytes;
    for (int i = 0; i < 20'000; ++i) {
      SignalConsumer victim = ring.consumer;
      header->tag.store(record_tag(SignalRing::key, lead * line_bytes));
      header->bytes = i < 7'000 ? static_cast<std::uint32_t>(i * 3) : static_cast<std::uint32_t>(random());
      header->kind = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : static_cast<std::uint32_t>(random());
      const std::uint32_t bytes = header->bytes;
      const std::uint32_t kind = header->kind;
      ByteSpan signal;
      switch (victim.find(signal)) {
        case SignalConsumer::Next::signal:
          ASSERT_EQ(kind, 0U);
          ASSERT_EQ(signal.size(), bytes);
          ASSERT_LE(signal.size(), max_signal);
          ASSERT_LE(record_bytes(signal.size()), contiguous);
          break;
        case SignalConsumer::Next::none:
          ASSERT_EQ(kind, 1U);
          ASSERT_EQ(bytes, contiguous - sizeof(RecordHeader));
          break;
        case SignalConsumer::Next::broken:
          ASSERT_TRUE(kind != 0 || bytes > max_signal || record_bytes(bytes) > contiguous);
          break;
      }
    }
  }
}

// Skips without end: the second in a row is one too many.
TEST(ShmSignalRing, SkipsDoNotLoop) {
  SignalRing ring;
  auto* header = reinterpret_cast<RecordHeader*>(ring.data());
  header->bytes = SignalRing::bytes - sizeof(RecordHeader);
  header->kind = 1;
  header->tag.store(record_tag(SignalRing::key, 0));
  ByteSpan signal;
  EXPECT_EQ(ring.consumer.find(signal), SignalConsumer::Next::none);
  header->tag.store(record_tag(SignalRing::key, SignalRing::bytes));
  EXPECT_EQ(ring.consumer.find(signal), SignalConsumer::Next::none);
}

struct BulkRing {
  BulkRing()
      : in(ChannelMemory::create(sizes_for(0)).value()),
        out(ChannelMemory::attach(in.fd(), in.sizes()).value()),
        producer(out),
        consumer(in) {}
  SlotHeader* header(std::uint64_t number) { return reinterpret_cast<SlotHeader*>(out.slot(number)); }

  ChannelMemory in, out;
  BulkProducer producer;
  BulkConsumer consumer;
};

TEST(ShmBulkRing, EveryChunkComesOnceOrIsTakenBack) {
  BulkRing ring;
  std::mt19937_64 random(23);
  struct Chunk {
    std::uint64_t number;
    std::size_t bytes;
    bool revoked;
  };
  std::deque<Chunk> sent;   // not taken yet
  std::deque<Chunk> acked;  // not acknowledged yet
  for (int step = 0; step < 20'000; ++step) {
    switch (random() % 4) {
      case 0:
      case 1: {
        if (!ring.producer.has_free()) break;
        const std::uint64_t number = ring.producer.next();
        SlotInfo info;
        info.kind = SlotKind::put;
        info.token = number * 3;
        info.pieces = static_cast<std::uint32_t>(random() % (max_put_pieces + 1));
        info.bytes = static_cast<std::uint32_t>(random() % (random() % 16 == 0 ? ring.out.sizes().slot_payload() + 1 : 200));
        for (std::size_t i = 0; i < info.pieces; ++i) ring.producer.write_piece(i, {number, i, number ^ i});
        testing::fill_pattern({ring.producer.payload(), info.bytes}, number);
        ring.producer.publish(info);
        sent.push_back({number, info.bytes, false});
        break;
      }
      case 2: {
        if (random() % 5 == 0 && !sent.empty()) {
          Chunk& chunk = sent[random() % sent.size()];
          if (chunk.revoked) break;
          ASSERT_EQ(ring.producer.revoke(chunk.number), BulkProducer::Revoke::revoked);
          chunk.revoked = true;
          break;
        }
        SlotInfo info;
        bool skipped = false;
        const auto next = ring.consumer.take(info, skipped);
        bool expect_skipped = false;
        while (!sent.empty() && sent.front().revoked) {
          expect_skipped = true;
          acked.push_back(sent.front());
          sent.pop_front();
        }
        ASSERT_EQ(skipped, expect_skipped);
        if (sent.empty()) {
          ASSERT_EQ(next, BulkConsumer::Next::none);
          break;
        }
        ASSERT_EQ(next, BulkConsumer::Next::slot);
        const Chunk chunk = sent.front();
        ASSERT_EQ(ring.producer.revoke(chunk.number), BulkProducer::Revoke::busy);
        ASSERT_EQ(info.token, chunk.number * 3);
        ASSERT_EQ(info.bytes, chunk.bytes);
        for (std::size_t i = 0; i < info.pieces; ++i) {
          ASSERT_EQ(ring.consumer.piece(i).region, chunk.number);
          ASSERT_EQ(ring.consumer.piece(i).offset, i);
          ASSERT_EQ(ring.consumer.piece(i).bytes, chunk.number ^ i);
        }
        ASSERT_EQ(testing::first_mismatch({ring.consumer.payload(), info.bytes}, chunk.number), -1);
        ring.consumer.finish(chunk.number % 2 == 0 ? Code::ok : Code::stale);
        ASSERT_EQ(ring.producer.revoke(chunk.number), BulkProducer::Revoke::consumed);
        acked.push_back(chunk);
        sent.pop_front();
        break;
      }
      default: {
        std::uint64_t number = 0;
        Code outcome = Code::protocol;
        bool broken = false;
        if (!ring.producer.take_ack(number, outcome, broken)) {
          ASSERT_TRUE(acked.empty());
          break;
        }
        ASSERT_FALSE(acked.empty());
        ASSERT_EQ(number, acked.front().number);
        ASSERT_EQ(outcome, acked.front().revoked || number % 2 == 0 ? Code::ok : Code::stale);
        acked.pop_front();
      }
    }
  }
}

TEST(ShmBulkRing, ForgedHeadersKeepTheLimits) {
  std::mt19937_64 random(29);
  BulkRing ring;
  ring.out.control().bulk_tail.store(1);
  auto* header = ring.header(0);
  auto* raw = reinterpret_cast<std::byte*>(header);
  for (std::uint32_t i = 0; i < 30'000; ++i) {
    header->state.store(static_cast<std::uint32_t>(SlotState::ready));
    header->kind = i % 4;
    header->pieces = i % 4 == 1 ? 2 : 0;
    header->bytes = i % 4 == 1 ? 2 * sizeof(Piece) : 0;
    header->code = 0;
    header->streaming = 0;
    raw[random() % sizeof(SlotHeader)] = static_cast<std::byte>(random());
    if (i % 2 == 0) raw[random() % sizeof(SlotHeader)] = static_cast<std::byte>(random());
    BulkConsumer victim = ring.consumer;
    SlotInfo info;
    bool skipped = false;
    if (victim.take(info, skipped) != BulkConsumer::Next::slot) continue;
    ASSERT_LE(info.bytes, ring.in.sizes().slot_payload());
    ASSERT_LE(static_cast<std::uint32_t>(info.kind), 3U);
    ASSERT_TRUE(info.kind != SlotKind::put || info.pieces <= max_put_pieces);
    ASSERT_TRUE(info.kind != SlotKind::get_request || (info.pieces >= 1 && info.pieces * sizeof(Piece) == info.bytes));
  }
}

TEST(ShmBulkRing, ForgedCountsAreBroken) {
  for (const std::uint64_t tail : {std::uint64_t{5}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    BulkRing ring;
    ring.out.control().bulk_tail.store(tail);
    SlotInfo info;
    bool skipped = false;
    EXPECT_EQ(ring.consumer.take(info, skipped), BulkConsumer::Next::broken);
  }
  for (const std::uint64_t head : {std::uint64_t{2}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    BulkRing ring;
    ring.producer.publish({});
    ring.in.control().bulk_head.store(head);
    std::uint64_t number = 0;
    Code outcome = Code::ok;
    bool broken = false;
    EXPECT_FALSE(ring.producer.take_ack(number, outcome, broken));
    EXPECT_TRUE(broken);
  }
  BulkRing ring;  // a tail that moved over a slot never filled
  ring.out.control().bulk_tail.store(1);
  SlotInfo info;
  bool skipped = false;
  EXPECT_EQ(ring.consumer.take(info, skipped), BulkConsumer::Next::broken);
}

}  // namespace
}  // namespace hmc::shm
