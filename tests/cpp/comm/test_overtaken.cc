// Two connections between the same two Contexts: what one of them brings late is not taken for a broken protocol. And puts that are
// complete at this end only, whose RemoteBuffer is dropped: what follows a fence stays behind them, and they are not lost in
// silence.
#include <chrono>
#include <functional>
#include <thread>

#include "breaking.h"
#include "comm/context_impl.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

PeerImpl& inside(const Peer& peer) { return static_cast<PeerImpl&>(*peer.state()); }
Engine& engine_of(const Peer& peer) { return *inside(peer).impl().engine(); }
EndpointSlot* slot_of(const Peer& peer, std::string_view transport) { return inside(peer).connections().find(transport); }

struct TwoContexts {
  explicit TwoContexts(const std::string& transports, Progress of_a, Progress of_b, bool b_avoids_swift = false) {
    add_swift_transport();
    swift_refuses = false;
    ContextOptions options;
    options.progress = of_a;
    a = make_context(transports, {}, options);
    options.progress = of_b;
    swift_hides = b_avoids_swift;
    b = make_context(transports, {}, options);
    const auto connecting = *a.iconnect(b.addresses().front(), soon()), accepting = *b.iaccept(soon());
    while (!connecting.done() || !accepting.done()) {
      a.progress();
      b.progress();
    }
    ab = *connecting.take();
    ba = *accepting.take();
  }
  // Both sides move until `done`, which is called with the lock of `a` held.
  [[nodiscard]] bool drive(const std::function<bool()>& done) const {
    for (const auto limit = soon(); !limit.passed();) {
      b.progress();
      a.progress();
      const auto lock = engine_of(ab).lock();
      if (done()) return true;
    }
    return false;
  }
  Context a, b;
  Peer ab, ba;
};

// Messages go by swift.
struct SwiftAndTcp : TwoContexts {
  explicit SwiftAndTcp(Progress of_a) : TwoContexts("swift,tcp", of_a, Progress::background) {
    {
      const auto lock = engine_of(ab).lock();
      inside(ab).connections().open(*inside(ab).impl().transports().find("tcp"), 0);
    }
    for (const Peer* peer : {&ab, &ba}) {
      EXPECT_TRUE(engine_of(*peer).drive(soon(), [&] {
        const EndpointSlot* const tcp = slot_of(*peer, "tcp");
        return tcp != nullptr && tcp->state == EndpointSlot::State::ready;
      }));
    }
  }
};

// A connection ends there, and its other one goes on to acknowledge what it receives. The news of the end comes by the control
// channel, with the count of then.
TEST(Overtaken, AnOlderCountBreaksNothing) {
  const SwiftAndTcp two(Progress::manual);
  EndpointSlot& tcp = *slot_of(two.ba, "tcp");
  {
    const auto lock = engine_of(two.ba).lock();
    inside(two.ba).connections().on_failed(tcp, Status(Code::transport, "the test ends it"));
  }
  ASSERT_TRUE(engine_of(two.ba).drive(soon(), [&] { return !tcp.closing; }));
  constexpr std::uint64_t count = 600;
  auto out = pattern(8, 1);
  for (std::uint64_t i = 0; i < count; ++i) HMC_ASSERT_OK(two.ab.send(view(out), 1, soon()));
  while (counter(two.b, "messages.unread") < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  HMC_ASSERT_OK(two.ba.notify(3));
  HMC_EXPECT_OK(two.ab.wait_notify(3, 1, soon()));
  ASSERT_TRUE(two.drive([&] { return slot_of(two.ab, "tcp")->peer_stopped || !two.ab.state()->failure().ok(); }));
  EXPECT_TRUE(two.ab.alive() && two.ba.alive());
  for (std::uint64_t i = 0; i < count; ++i) HMC_ASSERT_OK(two.ba.recv(view(out), 1, soon()).status());
}

// The connection that a mark went by fails while its answer is on its way, by the control channel.
TEST(Overtaken, TheReceiptOfAConnectionThatFailedBreaksNothing) {
  const SwiftAndTcp two(Progress::background);
  for (const bool once_more : {false, true}) {
    {
      const auto lock = engine_of(two.ab).lock();
      EndpointSlot& swift = *slot_of(two.ab, "swift");
      auto& receipts = inside(two.ab).posts().receipts();
      swift.notified = true;
      EXPECT_FALSE(receipts.complete());
      receipts.on_slot_failed(swift);
      swift.notified = once_more;
      if (once_more) {
        EXPECT_FALSE(receipts.complete());
      }
    }
    HMC_ASSERT_OK(two.ab.fence());
    HMC_ASSERT_OK(two.ab.notify(1));
    HMC_EXPECT_OK(two.ba.wait_notify(1, 1, soon()));
  }
  EXPECT_TRUE(two.ab.alive() && two.ba.alive());
  const auto lock = engine_of(two.ab).lock();
  EXPECT_FALSE(inside(two.ab).posts().receipts().on_marked(0)) << "never sent";
}

void put_and_drop_once(const TwoContexts& two, const ConnBuffer& source, const ConnBuffer& target) {
  auto importing = *two.ab.iimport(*target.descriptor(), soon());
  ASSERT_TRUE(two.drive([&] { return importing.done(); }));
  auto remote = importing.take();
  ASSERT_TRUE(remote.ok()) << remote.status().str();
  const auto put = *two.ab.put(source, *remote, {Notify(), Complete::local});
  ASSERT_TRUE(two.drive([&] { return put.done(); }));
  HMC_ASSERT_OK(put.status());
}

// Puts `source` at level local, and drops the RemoteBuffer, until the flush that this takes is in flight: where the other side
// acknowledged the last bytes before this one noticed that it had sent them, the flush ends at once.
void put_and_drop(const TwoContexts& two, const ConnBuffer& source, const ConnBuffer& target) {
  const auto flushing = [&] { return inside(two.ab).imports().flushing(); };
  for (const auto limit = soon(); !limit.passed();) {
    put_and_drop_once(two, source, target);
    if (::testing::Test::HasFatalFailure() || engine_of(two.ab).drive(Deadline::after_seconds(2), flushing)) return;
  }
  FAIL() << "every put was acknowledged at once";
}

TEST(DroppedImports, AFenceWaitsForTheirPuts) {
  const TwoContexts two("swift,tcp", Progress::background, Progress::manual, true);  // puts of a go by swift, messages by tcp
  const auto source = *two.a.buffer(lengthy(8 << 20)), target = *two.b.buffer(source.size());
  for (std::uint64_t round = 1; round < 4; ++round) {
    fill_pattern(span_of(source), round);
    put_and_drop(two, source, target);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_NE(slot_of(two.ab, "swift"), nullptr);
    HMC_ASSERT_OK(two.ab.fence());
    HMC_ASSERT_OK(two.ab.notify(round));
    {
      const auto lock = engine_of(two.ab).lock();
      EXPECT_TRUE(two.ab.state()->fenced()) << "the other side has not moved since";
    }
    HMC_ASSERT_OK(two.ba.wait_notify(round, 1, soon()));
    EXPECT_EQ(first_mismatch(span_of(target), round), -1);
  }
}

TEST(DroppedImports, ThePeerIsLostWithTheirPuts) {
  const TwoContexts two("tcp", Progress::background, Progress::manual);
  const auto source = *two.a.buffer(lengthy(8 << 20)), target = *two.b.buffer(source.size());
  put_and_drop(two, source, target);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_GT(cut_data_connections(), 0);
  const auto is_over = [&] { return counter(two.a, "endpoints.failed.tcp") != 0; };
  for (const auto limit = soon(); !is_over() && !limit.passed();) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(two.ab.notify(1).code(), Code::peer_lost);
}

}  // namespace
}  // namespace hmc
