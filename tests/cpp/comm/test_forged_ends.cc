// Peers that lie about the ends of connections: they are lost as peers that break the protocol, and nothing else happens.
#include <thread>

#include "comm/connection/signals.h"
#include "comm/context_state.h"
#include "comm/wire/codec.h"
#include "comm/wire/messages.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

struct Lie {
  const char* name;
  bool accepting_lies;
  std::function<void(PeerState& to)> tell;
};

void control(PeerState& to, MessageType type, const Bytes& bytes) { HMC_EXPECT_OK(to.send_control(type, bytes)); }

wire::Stopped stopped(const std::string& transport, std::uint32_t attempt, std::uint64_t signals, std::uint64_t credit) {
  return {{transport, attempt, Code::transport, "so it says"}, signals, credit};
}

std::vector<Lie> lies() {
  constexpr std::uint64_t many = 1ULL << 40;
  const auto ended = [](const wire::Stopped& m) { return [m](PeerState& to) { control(to, wire::stopped, encode(m)); }; };
  const auto choice = [](const std::string& transport, std::uint32_t attempt) {
    return [=](PeerState& to) { control(to, wire::messages_by, encode(wire::EndpointNote{transport, attempt, Code::ok, ""})); };
  };
  return {
      {"an unknown transport ended", true, ended(stopped("carrier-pigeon", 0, 0, 0))},
      {"an attempt that never was ended", true, ended(stopped("tcp", 9, 0, 0))},
      {"signals that were never sent", true, ended(stopped("tcp", 0, many, 0))},
      {"credit that was never spent", true, ended(stopped("tcp", 0, 0, many))},
      {"signals that were never sent, by the other side", false, ended(stopped("tcp", 0, many, 0))},
      {"a choice of the side that has none", false, choice("tcp", 0)},
      {"a choice while nothing failed", true, choice("tcp", 0)},
      {"an address nobody waits for", false,
       [](PeerState& to) { control(to, wire::address, encode(wire::Address{"tcp", 5, pattern(40, 1)})); }},
      {"the end cut short", true, [](PeerState& to) { control(to, wire::stopped, pattern(7, 2)); }},
      {"the choice cut short", true, [](PeerState& to) { control(to, wire::messages_by, pattern(3, 3)); }},
      {"an answer to what was not asked", true, [](PeerState& to) { control(to, wire::alive, wire::encode_request(1)); }},
      {"a receipt for what was not sent", true, [](PeerState& to) { control(to, wire::marked, wire::encode_request(7)); }},
      {"a receipt cut short", false, [](PeerState& to) { control(to, wire::marked, pattern(5, 1)); }},
      {"a question cut short", false, [](PeerState& to) { control(to, wire::are_you_alive, pattern(7, 1)); }},
      {"an acknowledgement of what was never sent", true,
       [](PeerState& to) { HMC_EXPECT_OK(to.signal(number_signal(NotifyKind::received, {}, many), {})); }},
  };
}

TEST(ForgedEnds, EndThePeerAndNothingElse) {
  for (const Lie& lie : lies()) {
    SCOPED_TRACE(lie.name);
    const Pair pair("tcp");
    const Context bystander = make_context("tcp");
    const Context& victim = lie.accepting_lies ? pair.a : pair.b;
    const Peer& liar = lie.accepting_lies ? pair.ab : pair.ba;
    const Peer& target = lie.accepting_lies ? pair.ba : pair.ab;
    const auto other = *bystander.connect(victim.addresses().front(), soon());
    const auto known = *victim.accept(soon());
    {
      PeerState& state = *target.state();
      const auto lock = state.context().engine()->lock();
      lie.tell(state);
      state.context().engine()->kick();
    }
    std::vector<std::byte> in(5);
    const Status end = liar.recv({in.data(), in.size()}, 1, soon()).status();
    EXPECT_EQ(end.code(), Code::protocol) << end.str();
    EXPECT_FALSE(liar.alive());
    std::vector<std::byte> out = pattern(5, 4);
    HMC_EXPECT_OK(other.send({out.data(), out.size()}, 2, soon()));
    HMC_EXPECT_OK(known.recv({in.data(), in.size()}, 2, soon()).status());
    EXPECT_EQ(in, out);
  }
}

// Withdrawals of answers that were never given: each is to be replied to, and the liar reads no reply.
TEST(ForgedEnds, WhoAsksForMoreThanItReadsIsLost) {
  const Pair pair("shm");
  PeerState& state = *pair.ba.state();
  const Bytes asked = encode(messaging::Halt{1, 1, messaging::Halt::What::request});
  const Deadline deadline = soon();
  const auto lock = state.context().engine()->lock();  // it reads nothing from here on
  while (pair.ab.alive() && !deadline.passed()) {
    if (!state.signal(asked, {}).ok()) std::this_thread::yield();
  }
  EXPECT_FALSE(pair.ab.alive());
}

}  // namespace
}  // namespace hmc
