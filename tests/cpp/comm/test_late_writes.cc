// Memory that a peer's process writes by itself: no close returns, and no operation ends, while it may still do so. What returned
// is overwritten with a pattern, the peer goes on, and every byte is compared.
#include <signal.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "comm/context_state.h"
#include "comm/wire/codec.h"
#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

const std::size_t size = lengthy(12 << 20);

// "<transports> <address> <what>": writes without end into "mine", sends without end, or does both and breaks the protocol.
TEST(Role, DISABLED_late_writer) {
  std::istringstream words(role_arguments());
  std::string transports, address, what;
  words >> transports >> address >> what;
  const auto context = make_context(transports);
  const auto peer = *context.connect(address, soon());
  auto bytes = pattern(size, 5);
  const MemoryView message{bytes.data(), bytes.size()};
  std::thread liar;
  if (what == "lie") {
    liar = std::thread([&] {
      hear();
      PeerState& state = *peer.state();
      const auto lock = state.context().engine()->lock();
      static_cast<void>(state.send_control(wire::stopped, pattern(7, 2)));
    });
  }
  tell("ready");
  if (what == "send") {
    for (Status sent; sent.ok();) sent = peer.send(message, 1, soon(60));
  } else {
    const auto remote = peer.lookup("mine", soon());
    ASSERT_TRUE(remote.ok()) << remote.status().str();
    const auto source = *context.register_memory(*Memory::wrap(bytes.data(), bytes.size()));
    tell("writing");
    for (Status put; put.ok();) {
      const auto work = peer.put(source, *remote);
      put = work.ok() ? work->wait(soon(60)) : work.status();
    }
  }
  tell("ended");
  if (liar.joinable()) liar.join();
  hear();
}

struct LateWriter {
  LateWriter(const std::string& way, const std::string& what)
      : way_(way), context(make_context(way_.transports)), role("late_writer", way_.transports + " " + place() + " " + what) {
    peer = *context.accept(soon());
    EXPECT_EQ(role.read_line(), "ready");
  }
  std::string place() const { return context.addresses().front(); }
  void stop_after(int microseconds) const {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    role.signal(SIGSTOP);
  }
  // While it writes just there, or has written.
  void stop_when_written(const std::byte& place, std::byte before) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (peek(place) == before && std::chrono::steady_clock::now() < give_up) {
    }
    role.signal(SIGSTOP);
  }
  // It goes on, and ends what it does.
  void go_on() {
    role.signal(SIGCONT);
    EXPECT_EQ(role.read_line(), "ended");
  }
  Way way_;
  Context context;
  Role role;
  Peer peer;
};

class LateWrites : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, LateWrites, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

// Into memory that the peer is writing at the same time: hidden from ThreadSanitizer.
__attribute__((no_sanitize("thread"))) void poke(std::byte& place, std::byte value) {
  static_cast<volatile std::byte&>(place) = value;
}

struct Target {
  Target(const Context& context, bool foreign) : own_(foreign ? size : 0) {
    buffer = foreign ? *context.register_memory(*Memory::wrap(own_.data(), size)) : *context.buffer(size);
    keep = buffer.memory();
    HMC_EXPECT_OK(context.publish("mine", buffer));
  }
  // Stops the writer in the middle of a put, somewhere else in each round.
  void expect_write(const LateWriter& writer, int round) const {
    std::byte& place = bytes()[size / 8 * static_cast<std::size_t>(round % 7 + 1)];
    const std::byte place_before = pattern_byte(static_cast<std::size_t>(&place - bytes().data()), 5) ^ std::byte{255};
    poke(place, place_before);
    writer.stop_when_written(place, place_before);
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(keep.data()), size}; }
  std::vector<std::byte> own_;
  ConnBuffer buffer;
  Memory keep;
};

void expect_honest_timeout(const Status& status) {
  EXPECT_EQ(status.code(), Code::timeout) << status.str();
  EXPECT_NE(status.message().find("writ"), std::string_view::npos) << status.str();
}

TEST_P(LateWrites, NoneAfterPeerAndBufferAreClosed) {
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    LateWriter writer(GetParam(), "put");
    const Target target(writer.context, round % 2 == 0);
    ASSERT_EQ(writer.role.read_line(), "writing");
    const bool stopped = round % 4 < 2;
    if (stopped) target.expect_write(writer, round);
    writer.peer.close();
    const Status first = target.buffer.close(soon(stopped ? 0.2 : 20));
    if (!first.ok()) expect_honest_timeout(first);
    if (first.ok()) fill_pattern(target.bytes(), 50);
    writer.go_on();
    if (!first.ok()) {
      HMC_ASSERT_OK(target.buffer.close(soon()));
      fill_pattern(target.bytes(), 50);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(first_mismatch(target.bytes(), 50), -1);
    HMC_EXPECT_OK(writer.context.close(soon()));
  }
}

TEST_P(LateWrites, NoneAfterTheContextIsClosed) {
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    LateWriter writer(GetParam(), "put");
    const Target target(writer.context, round % 2 == 0);
    ASSERT_EQ(writer.role.read_line(), "writing");
    target.expect_write(writer, round);
    const Status first = writer.context.close(soon(0.2));
    EXPECT_TRUE(first.ok() || first.code() == Code::timeout) << first.str();
    const bool over = writer.context.close(soon(0)).ok();
    if (over) fill_pattern(target.bytes(), 50);
    if (!over) expect_honest_timeout(first);
    writer.go_on();
    if (!over) {
      HMC_ASSERT_OK(writer.context.close(soon()));
      fill_pattern(target.bytes(), 50);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(first_mismatch(target.bytes(), 50), -1);
  }
}

// A handle's end closes too, and cannot say anything: HMC's own pages stay as they are.
TEST_P(LateWrites, AHandlesEndKeepsPagesThatMayBeWritten) {
  LateWriter writer(GetParam(), "put");
  {
    const Target target(writer.context, false);
    ASSERT_EQ(writer.role.read_line(), "writing");
    writer.stop_after(4000);
    static_cast<void>(writer.context.close(soon(0.1)));
    writer.peer = Peer();
    writer.context = Context();
  }
  std::vector<std::vector<std::byte>> others;
  for (std::uint64_t i = 0; i < 4; ++i) others.push_back(pattern(size, i));
  writer.go_on();
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(first_mismatch(others[i], i), -1);
}

TEST_P(LateWrites, AReceiveDoesNotEndWhileItsMemoryMayBeWritten) {
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    LateWriter writer(GetParam(), "send");
    Guarded in(size);
    // The sender's half begins, or the receiver's.
    const std::size_t at = round % 2 == 0 ? 1 : size / 2 + 8000;
    const std::byte before = pattern_byte(at, 5) ^ std::byte{255};
    in.inner()[at] = before;
    const auto received = *writer.peer.irecv(in.view(), 1);
    writer.stop_when_written(in.inner()[at], before);
    const bool by_context = round % 3 == 2, killed = round % 5 == 4;
    if (round % 3 == 0) static_cast<void>(received.cancel());
    if (by_context) {
      static_cast<void>(writer.context.close(soon(0.2)));
    } else {
      writer.peer.close();
    }
    const Status first = received.wait(soon(0.2));
    const bool ended = received.done();
    if (ended) fill_pattern(in.inner(), 50);
    if (killed) {
      writer.role.signal(SIGKILL);
      writer.role.signal(SIGCONT);
    } else {
      writer.go_on();
    }
    if (!ended) {
      EXPECT_EQ(first.code(), Code::timeout) << first.str();
      static_cast<void>(received.wait(soon()));
      ASSERT_TRUE(received.done());
      fill_pattern(in.inner(), 50);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(in.holds(size, 50));
  }
}

// As the buffer, or as the same bytes by another name.
TEST_P(LateWrites, AMatchedReceiveHoldsTheCloseOfItsBuffer) {
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    LateWriter writer(GetParam(), "send");
    const Target target(writer.context, round % 2 == 0);
    std::byte& first_byte = target.bytes()[1];
    const std::byte before = pattern_byte(1, 5) ^ std::byte{255};
    first_byte = before;
    const MemoryView view = round < 2 ? MemoryView(target.buffer) : MemoryView(target.keep);
    const auto received = *writer.peer.irecv(view, 1);
    writer.stop_when_written(first_byte, before);
    const bool ended_before = received.done();
    const Status first = target.buffer.close(soon(0.2));
    if (first.ok()) {
      EXPECT_TRUE(received.done());
    } else {  // the receive may end after that: the receiver's half needs no writer
      EXPECT_FALSE(ended_before);
      expect_honest_timeout(first);
    }
    writer.role.signal(SIGCONT);
    HMC_ASSERT_OK(target.buffer.close(soon()));
    EXPECT_TRUE(received.done());
    HMC_EXPECT_OK(received.wait(soon()));
    EXPECT_EQ(first_mismatch(target.bytes(), 5), -1);
    fill_pattern(target.bytes(), 50);
    writer.peer.close();
    EXPECT_EQ(writer.role.read_line(), "ended");
    EXPECT_EQ(first_mismatch(target.bytes(), 50), -1);
  }
}

TEST_P(LateWrites, AReceiveWithoutAMessageDoesNotHoldTheCloseOfItsBuffer) {
  LateWriter writer(GetParam(), "send");
  const Target target(writer.context, false);
  const auto received = *writer.peer.irecv(MemoryView(target.buffer), 2);
  HMC_EXPECT_OK(target.buffer.close(soon()));
  EXPECT_FALSE(received.done());
  HMC_EXPECT_OK(received.cancel());
  writer.peer.close();
  EXPECT_EQ(writer.role.read_line(), "ended");
}

TEST_P(LateWrites, ABlockingReceiveSaysThatItsMemoryMayBeWritten) {
  LateWriter writer(GetParam(), "send");
  Guarded in(size);
  Status end = writer.peer.recv(in.view(), 1, soon()).status();
  HMC_ASSERT_OK(end);
  std::thread stopper([&] { writer.stop_after(1500); });
  end = writer.peer.recv(in.view(), 1, soon(0.3)).status();
  stopper.join();
  const bool in_use = end.message().find("may still be used") != std::string_view::npos;
  EXPECT_TRUE(end.ok() || end.code() == Code::timeout || end.code() == Code::cancelled) << end.str();
  if (!in_use) fill_pattern(in.inner(), 50);
  writer.peer.close();
  writer.go_on();
  HMC_EXPECT_OK(writer.context.close(soon()));  // with it what was in use ends
  if (in_use) fill_pattern(in.inner(), 50);
  EXPECT_TRUE(in.holds(size, 50));
}

// A peer that breaks the protocol while its process goes on writing: it is lost at once, and its memory is not given back before it
// has ended its side.
TEST_P(LateWrites, NoneByAPeerThatBrokeTheProtocol) {
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    LateWriter writer(GetParam(), "lie");
    const Target target(writer.context, round % 2 == 0);
    ASSERT_EQ(writer.role.read_line(), "writing");
    writer.role.write_line("now");
    const Status lost = writer.peer.wait_notify(1, 1, soon());
    EXPECT_EQ(lost.code(), Code::protocol) << lost.str();
    HMC_ASSERT_OK(target.buffer.close(soon()));
    fill_pattern(target.bytes(), 50);
    EXPECT_EQ(writer.role.read_line(), "ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(first_mismatch(target.bytes(), 50), -1);
  }
}

}  // namespace
}  // namespace hmc
