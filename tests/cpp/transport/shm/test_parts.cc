// The parts of an endpoint on their own: signals that meet a full ring, operations and their flushes, doorbells.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "testing.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/operations.h"
#include "transport/shm/signals.h"

namespace {
std::atomic<bool> memory_is_short{false};
}  // namespace

// Instead of the C library's, whose errors nothing else brings about at will.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (!memory_is_short) return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
  errno = ENOSPC;
  return -1;
}

namespace hmc::shm {
namespace {

using testing::pattern;

struct Recorder final : Completion {
  void complete(Status outcome) noexcept override {
    ++count;
    status = std::move(outcome);
  }
  int count = 0;
  Status status;
};

// Two connected sides of one process; no engine polls them.
class ShmParts : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = Engine::create(Progress::manual).value();
    const auto lock = engine_->lock();
    for (Side& side : sides_) {
      side.in = ChannelMemory::create(sizes_for(min_ring_bytes)).value();
      HMC_ASSERT_OK(side.bell.open());
    }
    const UniqueFd ends[2] = {sides_[0].bell.end_for_peer().value(), sides_[1].bell.end_for_peer().value()};
    for (std::size_t i = 0; i < 2; ++i) {
      Side& side = sides_[i];
      const Side& other = sides_[1 - i];
      side.out = ChannelMemory::attach(other.in.fd(), other.in.sizes()).value();
      HMC_ASSERT_OK(side.bell.connect(*engine_, ends[1 - i], side.out.control().armed));
      side.signals.connect(side.in, 11 + i, side.out, 12 - i, side.bell);
    }
  }
  void TearDown() override {
    const auto lock = engine_->lock();
    for (Side& side : sides_) side.bell.close(*engine_);
  }
  // The next signal.
  Bytes take(std::size_t side) {
    struct Sink final : EndpointSink {
      void on_signal(ByteSpan signal) override { taken.emplace_back(signal.begin(), signal.end()); }
      void on_failed(const Status& reason) override { ADD_FAILURE() << reason.str(); }
      std::vector<Bytes> taken;
    } sink;
    std::size_t budget = 1;
    HMC_EXPECT_OK(sides_[side].signals.deliver(sink, *shared_, budget, true));
    EXPECT_EQ(sink.taken.size(), 1U);
    return sink.taken.empty() ? Bytes() : sink.taken.front();
  }

  struct Side {
    ChannelMemory in, out;
    Doorbell bell;
    Signals signals;
  };
  std::shared_ptr<Engine> engine_;
  const std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
  Side sides_[2];
};

TEST_F(ShmParts, AttachedSignalsWaitForRoomAndKeepTheirOrder) {
  Signals& sender = sides_[0].signals;
  Signals& receiver = sides_[1].signals;
  std::uint64_t sent = 0;
  for (; sender.post(pattern(max_signal, sent), {}).ok(); ++sent) continue;
  EXPECT_EQ(sender.post(pattern(max_signal, sent), {}).code(), Code::would_block);
  EXPECT_FALSE(sender.has_room(max_signal));
  for (const std::uint64_t seed : {sent, sent + 1}) {
    HMC_EXPECT_OK(sender.accept(max_signal));
    EXPECT_FALSE(sender.attach(pattern(max_signal, seed)));
  }
  EXPECT_TRUE(sender.waits());
  EXPECT_FALSE(sender.can_send());
  for (std::uint64_t seed = 0; seed < sent + 2; ++seed) {
    EXPECT_EQ(take(1), pattern(max_signal, seed));
    sender.send_waiting();
  }
  EXPECT_FALSE(receiver.ready());
  EXPECT_FALSE(sender.waits());
  HMC_EXPECT_OK(sender.post(pattern(5, 1), {}));
}

// A thread that still sends while the process ends.
TEST_F(ShmParts, AFullRingIsToldDuringExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a new process: nothing has met a full ring yet
  static Signals* late = nullptr;
  late = &sides_[0].signals;
  const auto end = [] {
    std::atexit([] {  // after the end of every object that is made later
      const Status status = late->post(pattern(max_signal, 1), {});
      _exit(status.code() == Code::would_block && status.message() == "the peer's signal ring is full" ? 0 : 3);
    });
    while (late->post(pattern(max_signal, 1), {}).ok()) continue;
    std::exit(4);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(0), "");
}

TEST_F(ShmParts, TooManyWaitingSignalsAreRefused) {
  Signals& sender = sides_[0].signals;
  EXPECT_EQ(sender.accept(max_signal + 1).code(), Code::invalid_argument);
  while (sender.has_room(max_signal)) sender.push(pattern(max_signal, 1), {});
  int accepted = 0;
  for (; sender.accept(max_signal).ok(); ++accepted) EXPECT_FALSE(sender.attach(pattern(max_signal, 1)));
  EXPECT_EQ(accepted, 64);
  EXPECT_EQ(sender.accept(1).code(), Code::would_block);
}

TEST_F(ShmParts, WithoutMemoryForMoreOfTheRingSignalsWait) {
  Signals& sender = sides_[0].signals;
  memory_is_short = true;
  EXPECT_EQ(sender.post(pattern(1, 0), {}).code(), Code::out_of_memory);  // nothing has begun
  memory_is_short = false;
  HMC_EXPECT_OK(sender.post(pattern(100, 0), {}));
  memory_is_short = true;
  Signals& answering = sides_[1].signals;
  EXPECT_EQ(take(1), pattern(100, 0));
  EXPECT_EQ(answering.post(pattern(1, 0), {}).code(), Code::would_block);  // the other side waits for it
  EXPECT_TRUE(answering.waits());
  memory_is_short = true;
  std::uint64_t sent = 1;
  for (; sender.post(pattern(100, sent), {}).ok(); ++sent) continue;
  EXPECT_EQ(sender.post(pattern(100, sent), {}).code(), Code::would_block);
  EXPECT_TRUE(sender.waits());
  EXPECT_TRUE(sender.can_send());  // nobody rings when there is memory: it asks until there is
  EXPECT_FALSE(sender.has_room(100));
  memory_is_short = false;
  EXPECT_TRUE(sender.send_waiting());
  HMC_EXPECT_OK(sender.post(pattern(100, sent), {}));
  EXPECT_FALSE(sender.waits());
  EXPECT_GT(sent, 300U);
  for (std::uint64_t seed = 1; seed <= sent; ++seed) EXPECT_EQ(take(1), pattern(100, seed));
  EXPECT_FALSE(sides_[1].signals.ready());
}

TEST_F(ShmParts, DoorbellRingsOnlyAnArmedPeer) {
  const UniqueFd listening = [&] {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    const auto lock = engine_->lock();
    sides_[0].bell.close(*engine_);
    HMC_EXPECT_OK(sides_[0].bell.connect(*engine_, UniqueFd(ends[1]), sides_[0].out.control().armed));
    return UniqueFd(ends[0]);
  }();
  char ring = 0;
  sides_[0].bell.ring();
  EXPECT_LT(recv(listening.get(), &ring, 1, MSG_DONTWAIT), 0);
  sides_[0].out.control().armed.store(1);
  sides_[0].bell.ring();
  sides_[0].bell.ring();
  EXPECT_EQ(recv(listening.get(), &ring, 1, MSG_DONTWAIT), 1);
  EXPECT_LT(recv(listening.get(), &ring, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(sides_[0].out.control().armed.load(), 0U);
}

class ShmOperations : public ::testing::Test {
 protected:
  Operation& add(bool is_put, Recorder& done) {
    Operation op;
    op.number = operations_.next_number();
    op.is_put = is_put;
    op.done = &done;
    return operations_.add(std::move(op));
  }
  Operations operations_;
};

TEST_F(ShmOperations, FlushWaitsForEarlierPutsOnly) {
  Recorder put, get, later, flush;
  const Operation& first = add(true, put);
  add(false, get);
  operations_.flush(&flush);
  add(true, later);
  operations_.end_flushes();
  EXPECT_EQ(flush.count, 0);
  for (const Code code : {Code::stale, Code::closed}) {  // the first counts
    Operation failed;
    failed.number = first.number;
    failed.failure = Status(code, "late");
    operations_.failed_late(failed);
  }
  EXPECT_EQ(operations_.remove(first)->done, &put);
  operations_.end_flushes();
  EXPECT_EQ(flush.count, 1);
  EXPECT_EQ(flush.status.code(), Code::stale);
}

TEST_F(ShmOperations, EveryOneHasItsTurn) {
  std::vector<Recorder> done(3);
  for (Recorder& each : done) add(true, each);
  for (int round = 0; round < 2; ++round) {
    for (const std::uint64_t number : {1U, 2U, 3U}) EXPECT_EQ(operations_.next_turn().number, number);
  }
  EXPECT_EQ(operations_.find(&done[1])->number, 2U);
  operations_.remove(*operations_.find(&done[1]));
  EXPECT_EQ(operations_.find(std::uint64_t{2}), nullptr);
  EXPECT_EQ(operations_.next_turn().number, 1U);
  EXPECT_EQ(operations_.next_turn().number, 3U);
}

TEST_F(ShmOperations, EndAllCompletesEachOnce) {
  Recorder put, flush;
  Operation& op = add(true, put);
  op.bytes = 10;
  op.moved = 4;
  operations_.flush(&flush);
  operations_.end_all(Status(Code::closed, "closed"));
  operations_.end_all(Status(Code::closed, "closed"));
  EXPECT_EQ(put.count, 1);
  EXPECT_EQ(flush.count, 1);
  EXPECT_NE(put.status.str().find("4 of 10 bytes"), std::string::npos) << put.status.str();
  EXPECT_TRUE(operations_.empty());
}

}  // namespace
}  // namespace hmc::shm
