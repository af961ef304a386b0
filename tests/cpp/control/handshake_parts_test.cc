// The parts of a handshake alone: what is said on a connection, the client's attempts, and the end after a refusal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "control/connect_attempts.h"
#include "control/exchange.h"
#include "control/linger.h"

namespace hmc::test {
namespace {

using namespace control;
using Step = Exchange::Step;

constexpr double patience_seconds = 60;

std::pair<UniqueFd, UniqueFd> sockets() {
  std::array<int, 2> fds{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

LocalSide side(std::uint64_t id, bool insecure = false, const std::string& key = {}) {
  LocalSide local;
  local.options.context_id = {id, id};
  local.options.name = "side " + std::to_string(id);
  local.options.insecure = insecure;
  local.epoch = id;
  if (!key.empty()) local.key = PresharedKey::from_text(key).value();
  return local;
}

// Both ends of one connection. With `passes_fds` false the streams act as over TCP.
struct Ends {
  Ends(const LocalSide& client_side, const LocalSide& server_side, bool passes_fds,
       const std::optional<MoveTicket>& ticket = std::nullopt)
      : Ends(client_side, server_side, passes_fds, ticket, sockets()) {}
  Ends(const LocalSide& client_side, const LocalSide& server_side, bool passes_fds, const std::optional<MoveTicket>& ticket,
       std::pair<UniqueFd, UniqueFd> pair)
      : client(client_side, std::make_unique<Stream>(std::move(pair.first), passes_fds), false, ticket),
        server(server_side, std::make_unique<Stream>(std::move(pair.second), passes_fds), true, std::nullopt) {
    client.greet();
    // The listener reads the magic before it hands a socket over.
    std::array<char, control_magic.size()> magic;
    EXPECT_EQ(recv(server.stream().fd(), magic.data(), magic.size(), 0), static_cast<ssize_t>(magic.size()));
  }
  static Exchange::Turn turn(Exchange& end) {
    while (end.stream().read() == Stream::Input::data) static_cast<void>(end.stream().flush());
    return end.advance("the other end");
  }
  // Alternates until one end has more to say than to wait.
  std::pair<Exchange::Turn, Exchange::Turn> run() {
    std::pair<Exchange::Turn, Exchange::Turn> turns;
    for (int i = 0; i < 10 && turns.first.step == Step::wait && turns.second.step == Step::wait; ++i) {
      turns.second = turn(server);
      turns.first = turn(client);
    }
    return turns;
  }
  Exchange client, server;
};

TEST(Exchange, ClientCommitsOnAUnixSocket) {
  const LocalSide a = side(1), b = side(2);
  Ends ends(a, b, true);
  EXPECT_EQ(ends.run().second.step, Step::identified);
  EXPECT_EQ(ends.server.peer().name, "side 1");
  EXPECT_FALSE(ends.server.must_move());
  ASSERT_TRUE(ends.server.answer(std::nullopt, {}).ok());
  EXPECT_EQ(Ends::turn(ends.client).step, Step::identified);
  EXPECT_EQ(ends.client.peer().epoch, 2U);
  ASSERT_TRUE(ends.client.commit());
  EXPECT_EQ(Ends::turn(ends.server).step, Step::committed);
}

TEST(Exchange, TlsAuthenticatesBothEnds) {
  const std::string key = generate_key();
  const LocalSide a = side(1, false, key), b = side(2, false, key);
  Ends ends(a, b, false);
  EXPECT_EQ(ends.run().second.step, Step::identified);
  EXPECT_TRUE(ends.client.authenticated());
  EXPECT_TRUE(ends.server.authenticated());
  EXPECT_TRUE(ends.server.stream().encrypted());
  EXPECT_FALSE(ends.server.must_move());
}

TEST(Exchange, TcpWithoutKeyIsNotCommittedUnlessBothAreInsecure) {
  for (const bool both : {false, true}) {
    SCOPED_TRACE(both);
    const LocalSide a = side(1, true), b = side(2, both);
    Ends ends(a, b, false);
    EXPECT_EQ(ends.run().second.step, Step::identified);
    EXPECT_EQ(ends.server.must_move(), !both);
    EXPECT_EQ(ends.client.must_move(), !both);
    ASSERT_TRUE(ends.server.answer(Secret{}, "unix:elsewhere").ok());
    EXPECT_EQ(Ends::turn(ends.client).step, Step::identified);
    EXPECT_EQ(ends.client.peer().move_address, "unix:elsewhere");
    ASSERT_TRUE(ends.client.commit());
    const auto turn = Ends::turn(ends.server);
    EXPECT_EQ(turn.step, both ? Step::committed : Step::refuse);
    EXPECT_EQ(turn.reason.code(), both ? Code::ok : Code::authentication);
  }
}

TEST(Exchange, RefusalBeforeTheHelloReachesTheClient) {
  const LocalSide a = side(1), b = side(2, false, generate_key());
  Ends ends(a, b, false);
  const auto turn = Ends::turn(ends.server);
  ASSERT_EQ(turn.step, Step::refuse);
  EXPECT_FALSE(ends.server.greeted());
  ends.server.refuse(turn.reason);
  const auto told = Ends::turn(ends.client);
  EXPECT_EQ(told.step, Step::fail);
  EXPECT_EQ(told.reason.code(), Code::authentication);
  EXPECT_NE(told.reason.message().find("refused by the other end"), std::string_view::npos);
}

TEST(Exchange, RefusalAfterTheHelloReachesTheClient) {
  const LocalSide a = side(1), b = side(2);
  Ends ends(a, b, true);
  EXPECT_EQ(ends.run().second.step, Step::identified);
  ends.server.refuse(Status(Code::authentication, "not today"));
  const auto told = Ends::turn(ends.client);
  EXPECT_EQ(told.step, Step::fail);
  EXPECT_NE(told.reason.message().find("not today"), std::string_view::npos);
}

TEST(Exchange, MovingClientRefusesAnotherContext) {
  const LocalSide a = side(1), b = side(2);
  Ends ends(a, b, true, MoveTicket{Secret{}, {3, 3}});
  EXPECT_EQ(ends.run().second.step, Step::identified);
  EXPECT_TRUE(ends.server.peer().ticket.has_value());
  ASSERT_TRUE(ends.server.answer(std::nullopt, {}).ok());
  const auto turn = Ends::turn(ends.client);
  EXPECT_EQ(turn.step, Step::refuse);
  EXPECT_EQ(turn.reason.code(), Code::authentication);
}

class HandshakeParts : public ::testing::Test {
 protected:
  bool until(const std::function<bool()>& condition) {
    return engine_->drive(Deadline::after_seconds(patience_seconds), condition);
  }

  std::shared_ptr<Engine> engine_ = Engine::create(Progress::manual).value();
};

TEST_F(HandshakeParts, LingerEndsWhenThePeerClosesOrSendsTooMuch) {
  for (const bool closes : {true, false}) {
    SCOPED_TRACE(closes);
    auto [ours, theirs] = sockets();
    std::optional<Linger> linger;
    bool over = false;
    {
      const auto held = engine_->lock();
      linger.emplace(*engine_, std::make_unique<Stream>(std::move(ours), true), [&] {
        linger.reset();
        over = true;
      });
    }
    std::array<char, 4096> bytes{};
    EXPECT_EQ(recv(theirs.get(), bytes.data(), bytes.size(), 0), 0) << "the writing side is not shut";
    EXPECT_FALSE(over);
    if (closes) {
      theirs.reset();
    } else {
      for (int i = 0; i < 20; ++i) {
        if (send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) break;
        const auto held = engine_->lock();
        engine_->poll_once();
      }
    }
    EXPECT_TRUE(until([&] { return over; }));
  }
}

TEST_F(HandshakeParts, AttemptsAreLimitedUntilAServerAnswers) {
  const auto held = engine_->lock();
  ConnectAttempts attempts(*engine_, "tcp://127.0.0.1:1", Deadline::never(), [](const Result<UniqueFd>&) {});
  int retries = 0;
  while (retries < 100 && attempts.retry(false)) ++retries;
  EXPECT_EQ(retries, 12);
  EXPECT_TRUE(attempts.retry(true));
  EXPECT_TRUE(attempts.retry(false)) << "it has answered before";
}

TEST_F(HandshakeParts, NoAttemptBeginsAfterTheDeadline) {
  const auto held = engine_->lock();
  ConnectAttempts attempts(*engine_, "tcp://127.0.0.1:1", Deadline::after_seconds(0), [](const Result<UniqueFd>&) {});
  EXPECT_FALSE(attempts.retry(true));
}

TEST_F(HandshakeParts, AFailedAttemptIsReportedOutsideTheStart) {
  std::optional<Status> told;
  std::optional<ConnectAttempts> attempts;
  {
    const auto held = engine_->lock();
    attempts.emplace(*engine_, "unix:/nowhere/at/all", Deadline::never(), [&](const Result<UniqueFd>& outcome) {
      told = outcome.status();
      attempts.reset();
    });
    attempts->start();
    EXPECT_FALSE(told.has_value());
  }
  EXPECT_TRUE(until([&] { return told.has_value(); }));
  EXPECT_EQ(told->code(), Code::peer_lost);
}

TEST_F(HandshakeParts, ATimerWithoutADeadlineIsNotPending) {
  const auto held = engine_->lock();
  OneShotTimer timer(*engine_);
  timer.start(Deadline::after_seconds(1000), [] {});
  EXPECT_TRUE(timer.pending());
  timer.start(Deadline::never(), [] {});
  EXPECT_FALSE(timer.pending());
  EXPECT_TRUE(timer.due().is_never());
}

}  // namespace
}  // namespace hmc::test
