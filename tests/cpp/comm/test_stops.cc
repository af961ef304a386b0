// A stopped peer: every blocking call honours its deadline, and once the peer goes on nothing is lost and nothing comes twice.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

#include "comm/context_state.h"
#include "comm/onesided/notifier.h"
#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

constexpr std::size_t target_bytes = 3'000'001;
constexpr std::size_t message_count = 120;
constexpr std::size_t large = 700'000;

std::size_t size_of(std::size_t i) { return i % 11 == 0 ? large + i : i % 500; }

// "<transports> <address>": what it checks after it was stopped, step by step.
TEST(Role, DISABLED_stopped) {
  std::istringstream words(role_arguments());
  std::string transports, address;
  words >> transports >> address;
  const auto context = make_context(transports, {"unix"});
  const auto peer = *context.connect(address, soon());
  auto memory = pattern(target_bytes, 1), source = pattern(target_bytes, 2);
  HMC_ASSERT_OK(context.publish("target", *context.register_memory(*Memory::wrap(memory.data(), memory.size()))));
  HMC_ASSERT_OK(context.publish("source", *context.register_memory(*Memory::wrap(source.data(), source.size()))));
  const auto unnamed = *context.buffer(target_bytes);
  auto descriptor = (*unnamed.descriptor()).serialise();
  HMC_ASSERT_OK(peer.send(view(descriptor), 70, soon()));
  Guarded early(large);
  const auto posted = *peer.irecv(early.view(), 50);
  tell(context.addresses().front());
  hear();
  HMC_EXPECT_OK(peer.wait_notify(8, 1, soon()));  // of the put
  tell(first_mismatch(memory, 3) == -1 ? "put" : "the put's bytes are wrong");
  const bool twice = peer.wait_notify(8, 1, soon(0.02)).ok();
  const bool counted = peer.wait_notify(7, 40, soon()).ok() && !peer.wait_notify(7, 1, soon(0.02)).ok();
  tell(counted && !twice ? "notified" : "notifications are lost or doubled");
  std::size_t wrong = 0;
  std::vector<std::byte> in(2 * large);
  for (std::size_t i = 0; i < message_count; ++i) {
    const auto info = peer.recv(view(in), 1, soon());
    const bool right = info.ok() && info->bytes == size_of(i) && first_mismatch(std::span(in).first(info->bytes), i) == -1;
    wrong += right ? 0 : 1;
  }
  tell("wrong messages: " + std::to_string(wrong));
  tell(peer.recv(view(in), 1, soon(0.05)).status().code() == Code::timeout ? "no more" : "a message came twice");
  HMC_EXPECT_OK(posted.wait(soon()));
  tell(early.holds(large, 50) ? "early" : "the receive that was posted before is wrong");
  auto answer = pattern(large, 60);
  HMC_EXPECT_OK(peer.send(view(answer), 60, soon()));
  hear();
}

class Stops : public ::testing::TestWithParam<std::string> {
 protected:
  Stops() : way_(GetParam()), context(make_context(way_.transports, {"unix"})), role("stopped", place()) {
    peer = *context.accept(soon());
    its_address = role.read_line();
  }
  std::string place() { return way_.transports + " " + context.addresses().front(); }
  void stop() {
    role.signal(SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(role.pid(), &status, WUNTRACED), role.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void go_on() const { role.signal(SIGCONT); }
  // The call ends with a timeout, and does not wait for the stopped process, which goes on later.
  void expect_timeout(const char* what, const std::function<Status(Deadline)>& call) {
    SCOPED_TRACE(what);
    const auto start = std::chrono::steady_clock::now();
    const Status status = call(soon(0.05));
    EXPECT_EQ(status.code(), Code::timeout) << status.str();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
  Way way_;
  Context context;
  Role role;
  Peer peer;
  std::string its_address;
};
INSTANTIATE_TEST_SUITE_P(Ways, Stops, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

TEST_P(Stops, DeadlinesAreHonouredAndNothingIsLost) {
  const auto target = *peer.lookup("target", soon()), source = *peer.lookup("source", soon());
  std::vector<std::byte> bytes(500);
  bytes.resize(peer.recv(view(bytes), 70, soon())->bytes);
  const auto descriptor = *Descriptor::parse(bytes);
  auto mine = pattern(target_bytes, 3);
  Guarded got(target_bytes), receive(100), receive_late(large);
  const auto from = *context.register_memory(*Memory::wrap(mine.data(), mine.size()));
  const auto into = *context.register_memory(*Memory::wrap(got.inner().data(), got.inner().size()));
  stop();

  // Posted calls return at once, whatever the peer does.
  const auto put = *peer.put(from, target, {8, Complete::remote});
  const auto get = *peer.get(into, source);
  const auto answer = *peer.irecv(receive_late.view(), 60);
  for (int i = 0; i < 40; ++i) HMC_EXPECT_OK(peer.notify(7));
  std::vector<std::vector<std::byte>> out;
  std::vector<Work> sends;
  for (std::size_t i = 0; i < message_count; ++i) {
    out.push_back(pattern(size_of(i), i));
    sends.push_back(*peer.isend(view(out[i]), 1));
  }
  auto early = pattern(large, 50);
  const auto matched = *peer.isend(view(early), 50);

  auto withdrawn = pattern(large, 99);
  expect_timeout("send", [&](Deadline d) { return peer.send(view(withdrawn), 1, d); });
  expect_timeout("recv", [&](Deadline d) { return peer.recv(receive.view(), 1, d).status(); });
  expect_timeout("recv any", [&](Deadline d) { return peer.recv(receive.view(), any_tag, d).status(); });
  expect_timeout("wait_notify", [&](Deadline d) { return peer.wait_notify(1, 1, d); });
  EXPECT_TRUE(peer.notifications(soon(0.05))->empty());
  expect_timeout("lookup", [&](Deadline d) { return peer.lookup("another", d).status(); });
  expect_timeout("import", [&](Deadline d) { return peer.import(descriptor, d).status(); });
  expect_timeout("wait_all", [&](Deadline d) { return wait_all(sends, d); });
  expect_timeout("wait_any", [&](Deadline d) { return wait_any(std::vector<Work>{answer, matched}, d).status(); });
  expect_timeout("wait", [&](Deadline d) { return answer.wait(d); });
  expect_timeout("accept", [&](Deadline d) { return context.accept(d).status(); });
  const auto stranger = make_context(way_.transports);
  expect_timeout("connect", [&](Deadline d) { return stranger.connect(its_address, d).status(); });
  EXPECT_TRUE(peer.alive());
  EXPECT_TRUE(peer.path().ok());

  go_on();
  role.write_line("go");
  EXPECT_EQ(role.read_line(), "put");
  EXPECT_EQ(role.read_line(), "notified");
  EXPECT_EQ(role.read_line(), "wrong messages: 0");
  EXPECT_EQ(role.read_line(), "no more");
  EXPECT_EQ(role.read_line(), "early");
  HMC_EXPECT_OK(put.wait(soon()));
  HMC_EXPECT_OK(get.wait(soon()));
  EXPECT_TRUE(got.holds(target_bytes, 2));
  HMC_EXPECT_OK(wait_all(sends, soon()));
  HMC_EXPECT_OK(matched.wait(soon()));
  HMC_EXPECT_OK(answer.wait(soon()));
  EXPECT_TRUE(receive_late.holds(large, 60));
  EXPECT_TRUE(receive.untouched());
  EXPECT_TRUE(stranger.connect(its_address, soon()).ok());
  EXPECT_EQ(peer.import(descriptor, soon())->size(), target_bytes);
  role.write_line("end");
  EXPECT_EQ(role.wait(), 0);
}

TEST_P(Stops, ClosingDoesNotWaitForIt) {
  const auto source = *peer.lookup("source", soon());
  Guarded got(target_bytes);
  const auto into = *context.register_memory(*Memory::wrap(got.inner().data(), got.inner().size()));
  stop();
  const auto get = *peer.get(into, source);
  auto message = pattern(large, 1);
  const auto sent = *peer.isend(view(message), 1);
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(context.close(soon(0.2)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  const Status end = get.wait(soon());
  EXPECT_TRUE(end.ok() || end.code() == Code::closed) << end.str();
  if (end.ok()) {
    EXPECT_TRUE(got.holds(target_bytes, 2));
  }
  fill_pattern(got.inner(), 5);
  go_on();
  // Not before: where the peer reads the message by itself, it might have begun.
  EXPECT_EQ(sent.wait(soon()).code(), Code::closed);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(got.holds(target_bytes, 5));
}

// Cancelled while the peer could not answer: what was called stopped stays stopped once it goes on.
TEST_P(Stops, WhatWasCancelledStaysSo) {
  const auto target = *peer.lookup("target", soon()), source = *peer.lookup("source", soon());
  auto mine = pattern(target_bytes, 3);
  Guarded got(target_bytes);
  const auto from = *context.register_memory(*Memory::wrap(mine.data(), mine.size()));
  const auto into = *context.register_memory(*Memory::wrap(got.inner().data(), got.inner().size()));
  stop();
  const auto get = *peer.get(into, source);
  const auto put = *peer.put(from, target);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const Status got_cancelled = get.cancel(), put_cancelled = put.cancel();
  const bool got_stopped = got_cancelled.ok();
  if (got_stopped) {
    EXPECT_EQ(get.status().code(), Code::cancelled);
    fill_pattern(got.inner(), 70);
  }
  if (put_cancelled.ok()) {
    EXPECT_EQ(put.status().code(), Code::cancelled);
    EXPECT_NE(put.status().message().find("written"), std::string_view::npos) << put.status().str();
    fill_pattern(mine, 71);
  }
  go_on();
  const Status got_end = get.wait(soon()), put_end = put.wait(soon());
  EXPECT_TRUE(got_end.ok() != got_stopped) << got_end.str();
  EXPECT_TRUE(put_end.ok() != put_cancelled.ok()) << put_end.str();
  // The link still works, and by then whatever was under way has passed.
  Guarded again(target_bytes);
  const auto other = *context.register_memory(*Memory::wrap(again.inner().data(), again.inner().size()));
  HMC_EXPECT_OK(peer.get(other, source)->wait(soon()));
  EXPECT_TRUE(again.holds(target_bytes, 2));
  EXPECT_TRUE(got.holds(target_bytes, got_stopped ? 70 : 2));
}

// Longer than a handshake may take between hosts.
TEST(HandshakesOfOneHost, WaitForAProcessThatIsStopped) {
  ContextOptions options;
  options.progress = Progress::manual;
  const auto a = make_context(), b = make_context("", {}, options);
  std::shared_ptr<PeerState> ab, ba;
  {
    const auto lock = a.state()->engine()->lock();
    ab = a.state()->expect_peer(b.state()->id(), {b.addresses().front()}, "rank 1");
  }
  {
    const auto lock = b.state()->engine()->lock();
    ba = b.state()->expect_peer(a.state()->id(), {a.addresses().front()}, "rank 0");
  }
  const Envelope to{7, 0, 1};
  HMC_ASSERT_OK(a.state()->notifier().notify(ab, 3, to, soon()));
  std::this_thread::sleep_for(std::chrono::seconds(11));
  HMC_ASSERT_OK(b.state()->notifier().wait_notify(ba, to, 3, 1, soon()));  // makes progress
}

}  // namespace
}  // namespace hmc
