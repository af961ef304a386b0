// A slow name server holds up only the connections that need it.
#include <string>

#include "control/node.h"
#include "held_lookup.h"

namespace hmc::test {
namespace {

using hmc::testing::HeldLookup;

std::string by_name(const std::string& address) {
  return "tcp://" + std::string(HeldLookup::name) + address.substr(address.rfind(':'));
}

TEST(NameLookup, OthersConnectMeanwhile) {
  Node server(Node::Setup{"", true, 3600, true, "node"});
  Node client(Node::Setup{"", true, 3600, true, "node"});
  const std::string address = server.listen("tcp://127.0.0.1:0");
  HeldLookup held;
  Link* named = nullptr;
  {
    const auto locked = client.engine->lock();
    client.plane->connect(by_name(address), Deadline::after_seconds(patience), [&](Result<std::unique_ptr<Channel>> result) {
      EXPECT_TRUE(result.ok()) << result.status().str();
      if (result.ok()) named = client.adopt(std::move(result).value());
    });
  }
  held.wait_for_lookup();
  const auto other = client.connect(address);
  EXPECT_TRUE(other.ok()) << other.status().str();
  EXPECT_EQ(named, nullptr);
  held.release();
  EXPECT_TRUE(client.until([&] { return named != nullptr; }));
}

TEST(NameLookup, KeepsTheDeadlineOfConnect) {
  Node client;
  const HeldLookup held;
  const auto result = client.connect("tcp://" + std::string(HeldLookup::name) + ":1", 0.05);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::timeout);
  EXPECT_NE(result.status().str().find("name server"), std::string::npos) << result.status().str();
}

TEST(NameLookup, DoesNotHoldUpTheEndOfThePlane) {
  HeldLookup held;
  int told = 0;
  {
    Node client;
    {
      const auto locked = client.engine->lock();
      client.plane->connect("tcp://" + std::string(HeldLookup::name) + ":1", Deadline::never(),
                            [&](Result<std::unique_ptr<Channel>> result) { told += result.ok() ? 0 : 1; });
    }
    held.wait_for_lookup();
  }
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace hmc::test
