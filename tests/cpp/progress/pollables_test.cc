#include "progress/pollables.h"

#include <gtest/gtest.h>

#include "progress/deferred_functions.h"
#include "progress/engine_testing.h"
#include "progress/retired_owners.h"

namespace hmc::testing {
namespace {

TEST(Pollables, PollsAllAndReportsMovement) {
  Pollables list;
  Poller still;
  Poller moving;
  int polls = 0;
  still.on_poll = [&polls] { return ++polls == 0; };
  moving.on_poll = [&polls] { return ++polls != 0; };
  list.add(still);
  const Pollables::Round round(list);
  EXPECT_FALSE(list.poll());
  list.add(moving);
  EXPECT_TRUE(list.poll());
  EXPECT_EQ(polls, 3);
}

TEST(Pollables, PollRemovesItselfAndAddsAnother) {
  Pollables list;
  Poller first;
  Poller second;
  int polls = 0;
  first.on_poll = [&] {
    list.remove(first);
    list.add(second);
    return false;
  };
  second.on_poll = [&polls] { return ++polls != 0; };
  list.add(first);
  {
    const Pollables::Round round(list);
    EXPECT_TRUE(list.poll());
  }
  list.remove(second);
  EXPECT_EQ(polls, 1);
  EXPECT_TRUE(list.empty());
}

TEST(Pollables, NestedRoundKeepsTheOuterOneOpen) {
  Pollables list;
  Poller poller;
  list.add(poller);
  {
    const Pollables::Round round(list);
    list.disarm();  // a Round of its own
    EXPECT_TRUE(list.in_round());
    list.remove(poller);
    EXPECT_FALSE(list.empty());
  }
  EXPECT_FALSE(list.in_round());
  EXPECT_TRUE(list.empty());
}

TEST(Pollables, RefusalDisarmsThoseArmedBefore) {
  Pollables list;
  Poller first;
  Poller refusing;
  Poller last;
  refusing.on_arm = [] { return false; };
  list.add(first);
  list.add(refusing);
  list.add(last);
  EXPECT_FALSE(list.arm());
  EXPECT_FALSE(list.armed());
  EXPECT_EQ(first.disarms, 1);
  EXPECT_EQ(refusing.disarms, 0);
  EXPECT_EQ(last.arms, 0);
  list.remove(refusing);
  EXPECT_TRUE(list.arm());
  EXPECT_TRUE(list.armed());
  list.disarm();
  EXPECT_FALSE(list.armed());
  EXPECT_EQ(last.disarms, 1);
}

TEST(Pollables, OneBusyIsEnough) {
  Pollables list;
  Poller idle;
  Poller busy;
  idle.on_busy = [] { return false; };
  list.add(idle);
  EXPECT_FALSE(list.any_busy());
  list.add(busy);
  EXPECT_TRUE(list.any_busy());
}

TEST(DeferredFunctions, RunInOrderAndLeaveNewOnesForTheNextCall) {
  DeferredFunctions functions;
  std::string order;
  functions.add([&] {
    order += 'a';
    functions.add([&order] { order += 'c'; });
  });
  functions.add([&order] { order += 'b'; });
  functions.run();
  EXPECT_EQ(order, "ab");
  EXPECT_FALSE(functions.empty());
  functions.run();
  EXPECT_EQ(order, "abc");
  EXPECT_TRUE(functions.empty());
}

TEST(RetiredOwners, LiveUntilTaken) {
  RetiredOwners retired;
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owner;
  retired.add(std::move(owner));
  EXPECT_FALSE(watched.expired());
  retired.take().clear();
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(retired.empty());
}

}  // namespace
}  // namespace hmc::testing
