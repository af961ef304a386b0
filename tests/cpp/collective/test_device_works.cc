#include "collective/device_works.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace hmc {
namespace {

// The host's runtime, which counts how often it is asked for what is over.
class CountingRuntime final : public DeviceRuntime {
 public:
  RuntimeInfo enumerate() override { return host_.enumerate(); }
  Result<std::optional<PointerInfo>> classify(const void* data, std::size_t bytes) override { return host_.classify(data, bytes); }
  Result<std::unique_ptr<Allocation>> allocate(int index, std::size_t bytes, const MemoryOptions& options) override {
    return host_.allocate(index, bytes, options);
  }
  Status copy(const CopyOp& op, Completion* done) override { return host_.copy(op, done); }
  DeviceCompute& compute() override { return host_.compute(); }
  MemorySharing& sharing() override { return host_.sharing(); }
  DeviceStreams& streams() override { return host_.streams(); }
  bool poll() override {
    ++asked;
    return false;
  }
  int asked = 0;

 private:
  DeviceRuntime& host_ = *runtime_for(Device::cpu()).value();
};

class OrderedWorksTest : public ::testing::Test {
 protected:
  std::shared_ptr<WorkState> start() {
    return works_->start(runtime_, [&](Completion* done) {
      started_.push_back(done);
      return Status();
    });
  }

  // A poll, later than a start puts off the question.
  void ask() {
    std::this_thread::sleep_for(std::chrono::microseconds(10));
    engine_->poll_once();
  }

  CountingRuntime runtime_;
  const std::shared_ptr<Engine> engine_ = Engine::create(Progress::manual).value();
  const std::shared_ptr<OrderedWorks> works_ = std::make_shared<OrderedWorks>(engine_);
  std::vector<Completion*> started_;
};

TEST_F(OrderedWorksTest, OneQuestionServesAll) {
  const auto lock = engine_->lock();
  const auto first = start(), second = start(), third = start();
  ask();
  EXPECT_EQ(runtime_.asked, 1);
  EXPECT_FALSE(first->done());
  started_[0]->complete({});
  started_[1]->complete({});
  ask();
  EXPECT_EQ(runtime_.asked, 1);
  EXPECT_TRUE(first->done() && second->done());
  EXPECT_FALSE(third->done());
  ask();
  EXPECT_EQ(runtime_.asked, 2);
  started_[2]->complete({});
  ask();
  EXPECT_TRUE(third->done());
}

TEST_F(OrderedWorksTest, ManyPendingAreAskedForAtOnce) {
  const auto lock = engine_->lock();
  for (int i = 0; i < 8; ++i) start();
  engine_->poll_once();
  EXPECT_EQ(runtime_.asked, 1);
  for (Completion* each : started_) each->complete({});
  engine_->poll_once();
}

TEST_F(OrderedWorksTest, PostsAskOnceForEachEight) {
  const auto lock = engine_->lock();
  for (int i = 0; i < 7; ++i) start();
  std::this_thread::sleep_for(std::chrono::microseconds(10));
  engine_->posting().look();
  EXPECT_EQ(runtime_.asked, 0);
  start();
  engine_->posting().look();
  EXPECT_EQ(runtime_.asked, 1);
  for (int i = 0; i < 7; ++i) start();
  engine_->posting().look();
  EXPECT_EQ(runtime_.asked, 1);
  start();
  engine_->posting().look();
  EXPECT_EQ(runtime_.asked, 2);
  for (std::size_t i = 0; i < 10; ++i) started_[i]->complete({});
  ask();
  EXPECT_EQ(runtime_.asked, 2);  // the first ones were known to be over
  for (std::size_t i = 10; i < started_.size(); ++i) started_[i]->complete({});
  ask();
}

// A device has been given as many calls as it takes at a time, or the other ranks do not come: the row of posts goes on, and those
// that are over are to be found.
TEST_F(OrderedWorksTest, PostsThatStartNothingAskToo) {
  const auto lock = engine_->lock();
  std::vector<std::shared_ptr<WorkState>> works;
  for (int i = 0; i < 64; ++i) {
    works.push_back(start());
    engine_->posting().look();
  }
  const int asked = runtime_.asked;
  for (int i = 0; i < 8; ++i) engine_->posting().look();
  EXPECT_EQ(runtime_.asked, asked + 1);
  for (Completion* each : started_) each->complete({});
  engine_->posting().look();
  EXPECT_TRUE(works.back()->done());
}

TEST_F(OrderedWorksTest, TheyEndInOrder) {
  const auto lock = engine_->lock();
  std::vector<int> ended;
  const auto first = start(), second = start();
  first->on_complete_locked([&](const Status&) { ended.push_back(1); });
  second->on_complete_locked([&](const Status& status) { ended.push_back(status.ok() ? 2 : -2); });
  engine_->poll_once();
  started_[1]->complete(Status(Code::device, "broken"));
  engine_->poll_once();
  EXPECT_TRUE(ended.empty());
  started_[0]->complete({});
  engine_->poll_once();
  EXPECT_EQ(ended, (std::vector<int>{1, -2}));
}

TEST_F(OrderedWorksTest, OneThatDoesNotStartEndsAtOnceWithItsError) {
  const auto lock = engine_->lock();
  const auto work = works_->start(runtime_, [](Completion*) { return Status(Code::device, "no launch"); });
  EXPECT_TRUE(work->done());
  EXPECT_EQ(work->status().code(), Code::device);
}

TEST_F(OrderedWorksTest, AnEndMayStartTheNext) {
  const auto lock = engine_->lock();
  std::shared_ptr<WorkState> next;
  start()->on_complete_locked([&](const Status&) { next = start(); });
  engine_->poll_once();
  started_[0]->complete({});
  engine_->poll_once();
  ASSERT_TRUE(next);
  EXPECT_FALSE(next->done());
  started_[1]->complete({});
  engine_->poll_once();
  engine_->poll_once();
  EXPECT_TRUE(next->done());
}

}  // namespace
}  // namespace hmc
