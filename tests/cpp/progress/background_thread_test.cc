#include "progress/background_thread.h"

#include <gtest/gtest.h>

#include <thread>

#include "progress/engine_testing.h"

namespace hmc::testing {
namespace {

// What owns a background thread, as an engine does.
struct Owner {
  explicit Owner(Progress progress) : background(core, dispatcher, progress) {
    EXPECT_TRUE(core.rounds.sources().descriptors().open().ok());
    EXPECT_TRUE(core.role.open().ok());
  }
  ~Owner() {
    background.stop();
    dispatcher.stop();
    if (ended_on != nullptr) ended_on->store(std::this_thread::get_id());
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  void need() {
    const auto held = core.lock.lock();
    background.need();
  }
  void add(Pollable& pollable) {
    const auto held = core.lock.lock();
    core.rounds.pollables().add(pollable);
  }

  std::atomic<std::thread::id>* ended_on = nullptr;
  EngineCore core;
  Dispatcher dispatcher;
  BackgroundThread background;
};

std::shared_ptr<Owner> make_owner(Progress progress = Progress::background) {
  auto owner = std::make_shared<Owner>(progress);
  owner->background.belong_to(owner);
  return owner;
}

TEST(BackgroundThread, WatchesFromTheFirstNeed) {
  Poller poller;
  const auto owner = make_owner();
  owner->add(poller);
  EXPECT_FALSE(owner->core.role.taken());
  EXPECT_FALSE(owner->background.absent());
  owner->need();
  EXPECT_TRUE(owner->core.role.taken());
  EXPECT_TRUE(eventually([&] { return owner->core.role.armed(); }));
  owner->need();
  EXPECT_EQ(poller.arms, 1);
}

TEST(BackgroundThread, ManualProgressHasNone) {
  const auto owner = make_owner(Progress::manual);
  owner->need();
  EXPECT_FALSE(owner->core.role.taken());
  EXPECT_TRUE(owner->background.absent());
}

TEST(BackgroundThread, GivesUpTheRoleAtItsEnd) {
  Poller poller;
  const auto owner = make_owner();
  owner->add(poller);
  owner->need();
  ASSERT_TRUE(eventually([&] { return owner->core.role.armed(); }));
  const std::atomic<std::uint32_t> never{0};
  Sleeper sleeper{.flag = &never};
  {
    const auto held = owner->core.lock.lock();
    owner->core.rounds.sleepers().link(sleeper);
  }
  owner->background.stop();
  EXPECT_EQ(sleeper.word, Sleeper::look_again);
  EXPECT_FALSE(owner->core.role.taken());
  EXPECT_TRUE(owner->background.absent());
  EXPECT_EQ(poller.arms, poller.disarms);
}

TEST(BackgroundThread, IsNotStartedAgainOnceStopped) {
  const auto owner = make_owner();
  owner->background.stop();
  owner->need();
  EXPECT_FALSE(owner->core.role.taken());
  owner->background.stop();
}

TEST(BackgroundThread, SleepsWithoutAReferenceToItsOwner) {
  Poller poller;
  auto owner = make_owner();
  const std::weak_ptr<Owner> weak = owner;
  owner->add(poller);
  owner->need();
  ASSERT_TRUE(eventually([&] { return owner->core.role.armed(); }));
  EXPECT_TRUE(eventually([&] { return owner.use_count() == 1; }));
  owner.reset();
  EXPECT_TRUE(weak.expired());
}

TEST(BackgroundThread, LastReferenceMayEndOnIt) {
  Poller poller;
  std::atomic<bool> polled{false}, dropped{false};
  std::atomic<std::thread::id> ended_on{};
  poller.on_poll = [&] {
    polled.store(true);
    return eventually([&] { return dropped.load(); });
  };
  auto owner = make_owner();
  owner->ended_on = &ended_on;
  owner->add(poller);
  owner->need();
  ASSERT_TRUE(eventually([&] { return polled.load(); }));
  owner.reset();
  dropped.store(true);
  EXPECT_TRUE(eventually([&] { return ended_on.load() != std::thread::id(); }));
  EXPECT_NE(ended_on.load(), std::this_thread::get_id());
}

}  // namespace
}  // namespace hmc::testing
