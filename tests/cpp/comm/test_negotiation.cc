// Both sides come to the same path, whatever each of them allows and whichever can be made; no path is half open.
#include <algorithm>

#include "breaking.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

struct Sides {
  Sides(const std::string& connecting, const std::string& accepting) {
    add_swift_transport();
    a = make_context(connecting);
    b = make_context(accepting);
    auto connected = a.connect(b.addresses().front(), soon());
    status = connected.status();
    if (!connected.ok()) return;
    ab = *connected;
    ba = *b.accept(soon());
  }
  Context a, b;
  Status status;
  Peer ab, ba;
};

bool mentions(const std::vector<std::string>& all, const std::string& text) {
  return std::ranges::any_of(all, [&](const std::string& one) { return one.find(text) != std::string::npos; });
}

// The bytes go, both ways, by the path that is told.
void expect_path(const Sides& sides, const std::string& transport, const std::string& runner_up) {
  const std::tuple<const Context&, const Context&, const Peer&, const Peer&> ways[] = {{sides.a, sides.b, sides.ab, sides.ba},
                                                                                       {sides.b, sides.a, sides.ba, sides.ab}};
  for (const auto& [from, to, peer, back] : ways) {
    const auto path = peer.path();
    ASSERT_TRUE(path.ok()) << path.status().str();
    EXPECT_EQ(path->transport, transport) << path->str();
    EXPECT_EQ(path->runner_up, runner_up) << path->str();
    const auto source = *from.buffer(10'001), target = *to.buffer(10'001);
    fill_pattern(span_of(source), 3);
    const auto remote = *peer.import(*target.descriptor(), soon());
    HMC_ASSERT_OK(peer.put(source, remote, {1, Complete::remote})->wait(soon()));
    HMC_ASSERT_OK(back.wait_notify(1, 1, soon()));
    EXPECT_EQ(first_mismatch(span_of(target), 3), -1);
    EXPECT_EQ(from.counters().at("put.count." + transport), 1U);
    std::vector<std::byte> out = pattern(100'000, 4), in(100'000);
    const auto receiving = *back.irecv({in.data(), in.size()}, 1);
    HMC_ASSERT_OK(peer.send({out.data(), out.size()}, 1, soon()));
    HMC_ASSERT_OK(receiving.wait(soon()));
    EXPECT_EQ(first_mismatch(in, 4), -1);
  }
}

TEST(Negotiation, WhatOneSideLeavesOutNeitherUses) {
  for (const auto& [left, right] : {std::pair("shm,tcp", "tcp"), std::pair("tcp", "shm,tcp"), std::pair("tcp", "^swift,shm")}) {
    SCOPED_TRACE(std::string(left) + " and " + right);
    const Sides sides(left, right);
    HMC_ASSERT_OK(sides.status);
    expect_path(sides, "tcp", "");
    if (std::string(left) == "shm,tcp") {
      EXPECT_TRUE(mentions(sides.ab.path()->rejected, "shm: the peer does not offer it"));
    }
  }
}

TEST(Negotiation, TheBestOfWhatBothHave) {
  {
    const Sides sides("shm,tcp", "shm,tcp");
    HMC_ASSERT_OK(sides.status);
    expect_path(sides, "shm", "tcp");
  }
  {
    const Sides sides("swift,tcp", "shm,tcp,swift");
    HMC_ASSERT_OK(sides.status);
    expect_path(sides, "swift", "tcp");
  }
}

TEST(Negotiation, NothingInCommonIsRefusedWithEveryReason) {
  for (const auto& [left, right] : {std::pair("shm", "tcp"), std::pair("tcp", "shm")}) {
    const Sides sides(left, right);
    EXPECT_EQ(sides.status.code(), Code::unsupported) << sides.status.str();
    const std::string said(sides.status.message());
    EXPECT_NE(said.find(std::string(left) + ": the peer does not offer it"), std::string::npos) << said;
    EXPECT_NE(said.find(std::string(right) + ": not available here (left out by transports"), std::string::npos) << said;
    EXPECT_TRUE(sides.b.peers().empty());
  }
}

// One side cannot make its end, the accepting one, which begins, or the other: neither goes on with half a connection.
TEST(Negotiation, WhatOneSideCannotMakeNeitherUses) {
  for (const int ends : {0, 1}) {
    SCOPED_TRACE(ends);
    swift_ends_left = ends + 2;  // each Context makes one to itself first, which fails later
    const Sides sides("swift,tcp", "swift,tcp");
    swift_ends_left = -1;
    HMC_ASSERT_OK(sides.status);
    expect_path(sides, "tcp", "");
    EXPECT_TRUE(mentions(sides.ab.path()->rejected, "swift: failed"));
    EXPECT_TRUE(mentions(sides.ba.path()->rejected, "swift: failed"));
  }
}

}  // namespace
}  // namespace hmc
