// A peer that comes back by a new connection while the end of its old one is still being waited for.
#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "scarce.h"
#include "support.h"

namespace hmc {
namespace {

using testing::add_scarce_transport;
using testing::make_context;
using testing::scarce_held;
using testing::scarce_holds;
using testing::soon;

// What on_joined and on_left were called for, in order.
class Visits {
 public:
  ContextOptions options(const std::string& name) {
    ContextOptions options;
    options.name = name;
    options.on_joined = [this](const Peer& peer) { add("joined", peer); };
    options.on_left = [this](const Peer& peer, const Status&) { add("left", peer); };
    return options;
  }
  [[nodiscard]] std::vector<std::string> seen() {
    const std::scoped_lock lock(mutex_);
    return seen_;
  }
  void expect(const std::vector<std::string>& wanted) {
    const auto limit = soon();
    while (seen().size() < wanted.size() && !limit.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(seen(), wanted);
  }

 private:
  // Each connection by the order in which it was seen first.
  void add(const std::string& what, const Peer& peer) {
    const std::scoped_lock lock(mutex_);
    auto number = std::ranges::find(states_, peer.state());
    if (number == states_.end()) number = states_.insert(states_.end(), peer.state());
    seen_.push_back(what + " " + std::to_string(number - states_.begin()));
  }
  std::mutex mutex_;
  std::vector<std::shared_ptr<PeerState>> states_;
  std::vector<std::string> seen_;
};

TEST(Rejoining, TheOldConnectionLeavesBeforeTheNewOneJoins) {
  add_scarce_transport();
  Visits at_a, at_b;
  const auto a = make_context("scarce", {}, at_a.options("a")), b = make_context("scarce", {}, at_b.options("b"));
  const auto source = *b.buffer(1000), target = *a.buffer(1000);
  const auto first = *b.connect(a.addresses().front(), soon());
  const auto accepted = *a.accept(soon());
  const auto remote = *first.import(*target.descriptor(), soon());
  scarce_holds = true;
  const auto put = *first.put(source, remote);
  while (scarce_held.load() == 0) std::this_thread::yield();
  first.close();  // and waits for the put
  const auto second = b.connect(a.addresses().front(), soon());
  ASSERT_TRUE(second.ok()) << second.status().str();
  const auto again = *a.accept(soon());
  HMC_ASSERT_OK(second->notify(1));
  HMC_ASSERT_OK(again.wait_notify(1, 1, soon()));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  scarce_holds = false;
  HMC_EXPECT_OK(put.wait(soon()));
  at_a.expect({"joined 0", "left 0", "joined 1"});
  at_b.expect({"joined 0", "left 0", "joined 1"});
  second->close();
  at_a.expect({"joined 0", "left 0", "joined 1", "left 1"});
  at_b.expect({"joined 0", "left 0", "joined 1", "left 1"});
}

// A visit that begins and ends while the one before has not ended.
TEST(Rejoining, EachVisitIsReportedInTurn) {
  add_scarce_transport();
  Visits at_a, at_b;
  const auto a = make_context("scarce", {}, at_a.options("a")), b = make_context("scarce", {}, at_b.options("b"));
  const auto source = *b.buffer(1000), target = *a.buffer(1000);
  const auto first = *b.connect(a.addresses().front(), soon());
  const auto remote = *first.import(*target.descriptor(), soon());
  scarce_holds = true;
  const auto put = *first.put(source, remote);
  while (scarce_held.load() == 0) std::this_thread::yield();
  first.close();
  for (int i = 0; i < 3; ++i) {
    const auto visit = b.connect(a.addresses().front(), soon());
    ASSERT_TRUE(visit.ok()) << visit.status().str();
    visit->close();
    while (std::ranges::any_of(a.peers(), [](const Peer& peer) { return peer.alive(); })) std::this_thread::yield();
  }
  scarce_holds = false;
  const std::vector<std::string> wanted{"joined 0", "left 0", "joined 1", "left 1", "joined 2", "left 2", "joined 3", "left 3"};
  at_a.expect(wanted);
  at_b.expect(wanted);
}

}  // namespace
}  // namespace hmc
