// Several rails to one peer: what they share, and what happens when one of them fails.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

#include <cstring>
#include <set>
#include <tuple>

namespace hmc::testing {
namespace {

constexpr std::size_t bytes = 8 << 20;

class VerbsRails : public OnFabric {
 protected:
  void start(const char* queue_pairs = "1") {
    setenv("HMC_VERBS_QUEUE_PAIRS", queue_pairs, 1);
    fabric().configure({.dma_buf = 1});
    connect();
    carried_before_[0] = fabric().bytes_moved(0);
    carried_before_[1] = fabric().bytes_moved(1);
  }
  std::uint64_t carried(unsigned device) const { return fabric().bytes_moved(device) - carried_before_[device]; }
  void works() {
    const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
    local.fill(71);
    target.fill(72);
    const auto remote = target.imported(pair->a()).value();
    Move put(pair->a(), local, *remote, bytes);
    HMC_ASSERT_OK(put.put());
    ends(put);
    EXPECT_TRUE(same_bytes(target.bytes(), pattern(bytes, 71)));
    HMC_ASSERT_OK(send_signal(pair->b(), pattern(100, 1)));
    ASSERT_TRUE(pair->until([&] { return !pair->a().sink.signals.empty(); }));
    EXPECT_EQ(pair->a().sink.signals.back(), pattern(100, 1));
  }
  // At the near end; it is gone again at once.
  Status another_endpoint() {
    Side more;
    more.node = pair->a().node;
    const Bytes domain = pair->b().node->transport->domain();
    const auto lock = more.lock();
    return more.node->transport->create_endpoint(same_process_domain(domain), more.sink).status();
  }
  void fails_under_puts(unsigned device, std::uint64_t after, std::uint32_t executed);
  void breaks_under_puts(unsigned device, std::uint64_t after, std::uint32_t executed);
  bool hangs = false;  // it says nothing of its failure
  // What is large goes by both again.
  void both_carry() {
    const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
    local.fill(73);
    const auto remote = target.imported(pair->a()).value();
    const std::uint64_t before[2] = {carried(0), carried(1)};
    const Deadline deadline = Deadline::after_seconds(60);
    while (std::min(carried(0) - before[0], carried(1) - before[1]) < bytes / 5) {
      ASSERT_FALSE(deadline.passed()) << carried(0) - before[0] << ' ' << carried(1) - before[1];
      Move put(pair->a(), local, *remote, bytes);
      HMC_ASSERT_OK(put.put());
      ends(put);
    }
    EXPECT_TRUE(same_bytes(target.bytes(), pattern(bytes, 73)));
  }

 private:
  std::uint64_t carried_before_[2] = {};
};

TEST_F(VerbsRails, ShareWhatIsLarge) {
  start();
  works();
  EXPECT_GT(carried(0), bytes / 5);
  EXPECT_GT(carried(1), bytes / 5);
}

TEST_F(VerbsRails, OneOnly) {
  setenv("HMC_VERBS_RAILS", "1", 1);
  start();
  works();
  EXPECT_EQ(std::min(carried(0), carried(1)), 0U);
}

TEST_F(VerbsRails, SeveralPerPort) {
  start("3");
  works();
  EXPECT_GT(carried(0), bytes / 5);
  EXPECT_GT(carried(1), bytes / 5);
}

// Puts of all sizes with a signal each, and plain signals between them. Whoever gets a put's signal compares its bytes and
// overwrites them: nothing may be written there afterwards. A port fails in between; `executed` requests arrive without their
// sender learning it.
void VerbsRails::fails_under_puts(unsigned device, std::uint64_t after, std::uint32_t executed) {
  start("1");
  breaks_under_puts(device, after, executed);
}

void VerbsRails::breaks_under_puts(unsigned device, std::uint64_t after, std::uint32_t executed) {
  SCOPED_TRACE(::testing::Message() << "device " << device << " after " << after << ", " << executed << " executed");
  constexpr unsigned count = 60;
  constexpr std::size_t room = 1 << 20;
  Side& from = pair->a();
  Side& to = pair->b();
  const AnyArea local(*from.node, room, Device::cpu());
  std::vector<std::unique_ptr<AnyArea>> targets;
  std::vector<std::unique_ptr<RemoteRegion>> remotes;
  std::vector<std::unique_ptr<Move>> puts;
  local.fill(5);
  const auto sent = pattern(room, 5);
  const auto size_of = [](unsigned i) { return std::size_t{i % 3 == 0 ? 777U : i % 3 == 1 ? 70'000U : 900'001U}; };
  for (unsigned i = 0; i < count; ++i) {
    targets.push_back(std::make_unique<AnyArea>(*to.node, size_of(i), Device::cpu()));
    targets.back()->fill(6);
    remotes.push_back(targets.back()->imported(from).value());
    puts.push_back(std::make_unique<Move>(from, local, *remotes.back(), size_of(i)));
  }
  std::set<unsigned> told;
  std::vector<unsigned> plain;
  to.sink.handler = [&](ByteSpan signal) {
    const auto [kind, number] = take_numbered(signal);
    if (kind == 1) return plain.push_back(number);
    EXPECT_TRUE(told.insert(number).second) << "twice: " << number;
    EXPECT_TRUE(same_bytes(targets[number]->bytes(), std::span(sent).first(size_of(number)))) << number;
    targets[number]->fill(1000 + number);
  };
  hangs ? fabric().hang_port(device, after, 1) : fabric().fail_port(device, after, executed);
  const Handled handled(&to.sink);
  for (unsigned i = 0; i < count; ++i) {
    const Bytes attached = numbered_signal(2 + i % 5, i, i % 4 != 0), own = numbered_signal(1, i, true);
    Status status;
    do {
      status = puts[i]->put(attached);
      if (!status.ok()) pair->poll();
    } while (status.code() == Code::would_block);
    HMC_ASSERT_OK(Status(status));
    do {
      status = send_signal(from, own);
      if (!status.ok()) pair->poll();
    } while (status.code() == Code::would_block);
    HMC_ASSERT_OK(Status(status));
  }
  ASSERT_TRUE(pair->until([&] {
    return told.size() == count && plain.size() == count &&
           std::ranges::all_of(puts, [](const auto& put) { return put->done.done(); });
  })) << told.size()
      << " puts told, " << plain.size() << " signals; " << from.sink.failure.str() << "; " << to.sink.failure.str();
  for (unsigned i = 0; i < count; ++i) {
    HMC_EXPECT_OK(Status(puts[i]->done.status()));
    EXPECT_EQ(puts[i]->done.count(), 1);
    EXPECT_EQ(plain[i], i);
  }
  pair->settle(1000);
  for (unsigned i = 0; i < count; ++i) EXPECT_TRUE(same_bytes(targets[i]->bytes(), pattern(size_of(i), 1000 + i))) << i;
  EXPECT_TRUE(from.sink.failure.ok() && to.sink.failure.ok());
  to.sink.handler = nullptr;
  to.sink.signals.clear();
  works();
}

// A test for each moment: together they take longer on a busy machine than one test may.
class VerbsRailFails : public VerbsRails,
                       public ::testing::WithParamInterface<std::tuple<unsigned, std::uint64_t, std::uint32_t>> {};

TEST_P(VerbsRailFails, ItsPortHandsItsShareOver) {
  const auto [device, after, executed] = GetParam();
  fails_under_puts(device, after, executed);
}

INSTANTIATE_TEST_SUITE_P(AtAnyMoment, VerbsRailFails,
                         ::testing::Combine(::testing::Values(0U, 1U), ::testing::Values(1U, 20U, 90U),
                                            ::testing::Values(0U, 3U, 1000U)));

TEST_F(VerbsRails, APortThatHangsHandsItsShareOver) {
  setenv("HMC_VERBS_SILENCE", "1", 1);
  hangs = true;
  for (const unsigned device : {0U, 1U}) {
    fails_under_puts(device, 20, 0);
    if (HasFatalFailure()) return;
    fabric().mend_ports();
    both_carry();
    TearDown();
    SetUp();
    setenv("HMC_VERBS_SILENCE", "1", 1);
  }
}

TEST_F(VerbsRails, AFailingPortUnderGetsAndDevices) {
  const Device cuda = Device::parse("cuda:0").value();
  for (unsigned turn = 0; turn < 4; ++turn) {
    const unsigned device = turn % 2;
    const bool is_put = turn < 2;
    start();
    {
      const AnyArea near(*pair->a().node, bytes, cuda), far(*pair->b().node, bytes, cuda);
      near.fill(1);
      far.fill(2);
      const auto remote = far.imported(pair->a()).value();
      fabric().fail_port(device, 30, 2);
      Move move(pair->a(), near, *remote, bytes);
      HMC_ASSERT_OK(is_put ? move.put(pattern(10, 1)) : move.get());
      ends(move);
      EXPECT_TRUE(same_bytes(near.bytes(), pattern(bytes, is_put ? 1 : 2)));
      EXPECT_TRUE(same_bytes(far.bytes(), pattern(bytes, is_put ? 1 : 2)));
      ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == (is_put ? 1 : 0); }));
    }
    pair.reset();
    fabric().mend_ports();
  }
}

TEST_F(VerbsRails, AMendedPortCarriesAgain) {
  start();
  for (const unsigned device : {0U, 1U, 0U}) {
    breaks_under_puts(device, 20, 3);
    fabric().mend_ports();
    both_carry();
    if (HasFatalFailure()) return;
  }
  works();
}

// A port that says that it is active and carries nothing costs the other nothing; one that says that it is down is left alone.
TEST_F(VerbsRails, APortThatIsNotMendedIsTriedAgain) {
  for (const std::uint32_t says_so : {0U, 1U}) {
    start();
    fabric().configure({.dma_buf = 1, .down = says_so});
    fabric().fail_port(1, 5, 0);
    const Deadline deadline = Deadline::after_seconds(4);
    while (!deadline.passed()) {
      works();
      pair->a().sink.signals.clear();
      if (HasFatalFailure()) return;
    }
    fabric().mend_ports();
    both_carry();
    pair.reset();
  }
}

// Its measured rate falls until smaller puts give it nothing. As fast as before, it gets a share again.
TEST_F(VerbsRails, APortThatWasSlowCarriesAgain) {
  start();
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  const auto carried_by = [&](unsigned device, std::size_t size) {
    const std::uint64_t before = carried(device);
    Move put(pair->a(), local, *remote, size);
    EXPECT_TRUE(put.put().ok());
    ends(put);
    return carried(device) - before;
  };
  constexpr std::size_t smaller = 4 << 20;
  const Deadline deadline = Deadline::after_seconds(60);
  fabric().slow_port(1, 50'000);
  while (carried_by(1, smaller) != 0 && !HasFailure()) {
    ASSERT_FALSE(deadline.passed());
    carried_by(1, bytes);
  }
  fabric().slow_port(1, 0);
  for (std::size_t again = 0; again < smaller / 4 && !HasFailure(); again += carried_by(1, smaller))
    ASSERT_FALSE(deadline.passed());
  both_carry();
}

// Operations that a rail's former life has carried some of begin anew where memory of a device is to be settled.
TEST_F(VerbsRails, DevicesWhilePortsComeAndGo) {
  const Device cuda = Device::parse("cuda:0").value();
  start();
  constexpr std::size_t much = 32 << 20;
  const AnyArea near(*pair->a().node, much, cuda), far(*pair->b().node, much, cuda);
  const auto remote = far.imported(pair->a()).value();
  for (unsigned turn = 0; turn < 4; ++turn) {
    near.fill(turn);
    far.fill(10 + turn);
    pair->b().sink.signals.clear();
    fabric().fail_port(turn % 2, 30, turn);
    Move put(pair->a(), near, *remote, much);
    HMC_ASSERT_OK(put.put(pattern(10, turn)));
    pair->settle(100);
    fabric().mend_ports();
    ends(put);
    ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == 1; }));
    EXPECT_TRUE(same_bytes(far.bytes(), pattern(much, turn)));
    both_carry();
    if (HasFatalFailure()) return;
  }
}

TEST_F(VerbsRails, WithTheLastThePeerIsLost) {
  start();
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), target(*pair->b().node, bytes, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  fabric().fail_port(0, 6, 0);  // both together before the put is through, however soon it starts
  fabric().fail_port(1, 9, 3);
  Move put(pair->a(), local, *remote, bytes), get(pair->a(), local, *remote, bytes);
  HMC_ASSERT_OK(put.put(pattern(10, 1)));
  HMC_ASSERT_OK(get.get());
  ends(put, Code::peer_lost);
  ends(get, Code::peer_lost);
  EXPECT_EQ(pair->a().sink.failure.code(), Code::peer_lost);
}

// A region that was closed ends what goes there, on every rail, and nothing else.
TEST_F(VerbsRails, AClosedRegion) {
  start();
  const AnyArea local(*pair->a().node, bytes, Device::cpu()), kept(*pair->b().node, bytes, Device::cpu());
  AnyArea gone(*pair->b().node, bytes, Device::cpu());
  local.fill(1);
  const auto to_gone = gone.imported(pair->a()).value(), to_kept = kept.imported(pair->a()).value();
  std::vector<std::unique_ptr<Move>> all;
  for (unsigned i = 0; i < 40; ++i) {
    all.push_back(std::make_unique<Move>(pair->a(), local, i % 4 == 0 ? *to_kept : *to_gone, i % 2 == 0 ? bytes : 5000));
    HMC_ASSERT_OK(i % 3 == 0 ? all.back()->put() : all.back()->put(numbered_signal(i % 5, i, i % 2 != 0)));
    if (i == 20) gone.deregister();
  }
  std::vector<unsigned> expected, told;
  for (unsigned i = 0; i < 40; ++i) {
    ASSERT_TRUE(pair->until([&] { return all[i]->done.done(); })) << i;
    const Code code = all[i]->done.status().code();
    EXPECT_TRUE(code == Code::ok || (i % 4 != 0 && code == Code::stale)) << i;
    if (code == Code::ok && i % 3 != 0) expected.push_back(i);
  }
  ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() >= expected.size(); }));
  pair->settle(100);
  for (const Bytes& signal : pair->b().sink.signals) told.push_back(take_numbered(signal).number);
  std::ranges::sort(told);
  EXPECT_EQ(told, expected);
  pair->b().sink.signals.clear();
  EXPECT_EQ(all.back()->done.status().code(), Code::stale);
  EXPECT_TRUE(same_bytes(kept.bytes(), pattern(bytes, 1)));
  works();
}

TEST_F(VerbsRails, AsManyAsThereIsRoomFor) {
  setenv("HMC_VERBS_QUEUE_PAIRS", "4", 1);
  fabric().configure({.max_pairs = 20});  // eight rails for the one end, two for the other
  connect();
  works();
  HMC_EXPECT_OK(another_endpoint());  // what the first end had too much it has given back
  fabric().configure({.max_pairs = 8});
  const Status refused = another_endpoint();
  EXPECT_EQ(refused.code(), Code::out_of_memory) << refused.str();
  EXPECT_NE(refused.str().find("HMC_VERBS_QUEUE_PAIRS=1"), std::string::npos) << refused.str();
  works();
}

// Several small queues where there is none of the usual size.
TEST_F(VerbsRails, SmallQueues) {
  fabric().configure({.max_entries = 300});
  connect();
  works();
  fabric().configure({.max_queues = 1, .max_entries = 300});
  const Status refused = another_endpoint();
  EXPECT_EQ(refused.code(), Code::out_of_memory) << refused.str();
  EXPECT_NE(refused.str().find("making a completion queue of"), std::string::npos) << refused.str();
  EXPECT_NE(refused.str().find("HMC_VERBS_QUEUE_PAIRS=1"), std::string::npos) << refused.str();
  fabric().configure({.max_entries = 200});
  EXPECT_NE(another_endpoint().str().find("making a completion queue of"), std::string::npos);
  works();
}

TEST_F(VerbsRails, NoRoomForAnotherRegion) {
  start();
  fabric().configure({.max_regions = 9});  // messages and sinks of two cards and two ends take eight
  std::vector<std::byte> memory(100);
  const auto refused = pair->a().node->transport->register_region({{memory.data(), memory.size(), Device::cpu()}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::out_of_memory) << refused.status().str();
  EXPECT_NE(refused.status().str().find("registering 100 bytes"), std::string::npos) << refused.status().str();
  fabric().configure({});
  works();
}

// Threads bring its pages in and register it with both cards.
TEST_F(VerbsRails, ALargeRegion) {
  start();
  constexpr std::size_t much = (100 << 20) + 4097;
  const AnyArea local(*pair->a().node, much, Device::cpu()), target(*pair->b().node, much, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  local.fill(1);
  Move put(pair->a(), local, *remote, 5000, much - 5000, much - 5001);
  HMC_ASSERT_OK(put.put());
  ends(put);
  const auto sent = pattern(much, 1);
  const auto came = target.bytes();
  EXPECT_TRUE(same_bytes(std::span(came).subspan(much - 5001, 5000), std::span(sent).subspan(much - 5000)));
}

// However much is to be put: a signal waits for what is under way, which is bounded.
TEST_F(VerbsRails, ShortOnesPassLongOnes) {
  start();
  constexpr std::size_t much = 64 << 20;
  const AnyArea local(*pair->a().node, much, Device::cpu()), target(*pair->b().node, much, Device::cpu());
  local.fill(1);
  const auto remote = target.imported(pair->a()).value();
  std::vector<std::unique_ptr<Move>> puts;
  for (int i = 0; i < 4; ++i) {
    puts.push_back(std::make_unique<Move>(pair->a(), local, *remote, much));
    HMC_ASSERT_OK(puts.back()->put());
  }
  pair->settle(10);
  const std::uint64_t before = carried(0) + carried(1);
  HMC_ASSERT_OK(send_signal(pair->a(), pattern(8, 1)));
  ASSERT_TRUE(pair->until([&] { return !pair->b().sink.signals.empty(); }));
  EXPECT_LT(carried(0) + carried(1) - before, 8U << 20);
  for (const auto& put : puts) ends(*put);
  EXPECT_TRUE(same_bytes(target.bytes(), pattern(much, 1)));
}

}  // namespace
}  // namespace hmc::testing

#endif
