#include "progress/kicks.h"

#include <gtest/gtest.h>

#include <chrono>

namespace hmc {
namespace {

Kicks::TimePoint start() { return Kicks::TimePoint{} + std::chrono::hours(1); }
Kicks::TimePoint soon() { return start() + Kicks::prompt_time; }
Kicks::TimePoint late() { return start() + 2 * Kicks::prompt_time; }

void answer_promptly(Kicks& kicks) {
  for (unsigned i = 0; i < Kicks::prompt_answers; ++i) {
    kicks.kick();
    kicks.expect_answer(start());
    kicks.answer(soon());
  }
}

TEST(Kicks, WantsTheWatcherUntilCleared) {
  Kicks kicks;
  EXPECT_FALSE(kicks.watcher_wanted(soon));
  kicks.kick();
  EXPECT_TRUE(kicks.kicked());
  EXPECT_TRUE(kicks.watcher_wanted(soon));
  kicks.clear();
  EXPECT_FALSE(kicks.watcher_wanted(soon));
}

TEST(Kicks, LingerIsTakenOnce) {
  Kicks kicks;
  kicks.kick();
  EXPECT_TRUE(kicks.take_linger());
  EXPECT_FALSE(kicks.take_linger());
  EXPECT_TRUE(kicks.kicked());
}

TEST(Kicks, PromptDriversKeepTheWatcherAway) {
  Kicks kicks;
  answer_promptly(kicks);
  EXPECT_TRUE(kicks.drivers_are_prompt());
  EXPECT_FALSE(kicks.watcher_wanted(late));
  kicks.expect_answer(start());
  EXPECT_TRUE(kicks.unanswered());
  EXPECT_FALSE(kicks.watcher_wanted(soon));
  EXPECT_TRUE(kicks.watcher_wanted(late));
}

TEST(Kicks, OneLateAnswerEndsPromptness) {
  Kicks kicks;
  answer_promptly(kicks);
  kicks.expect_answer(start());
  kicks.answer(late());
  EXPECT_FALSE(kicks.unanswered());
  EXPECT_FALSE(kicks.drivers_are_prompt());
}

TEST(Kicks, AnswerOfTheWatcherEndsPromptness) {
  Kicks kicks;
  answer_promptly(kicks);
  kicks.answer_as_watcher();
  EXPECT_TRUE(kicks.drivers_are_prompt());  // nothing was unanswered
  kicks.expect_answer(start());
  kicks.answer_as_watcher();
  EXPECT_FALSE(kicks.drivers_are_prompt());
  EXPECT_FALSE(kicks.unanswered());
}

TEST(Kicks, NudgeWantsOneLook) {
  Kicks kicks;
  kicks.nudge();
  EXPECT_TRUE(kicks.watcher_wanted(soon));
  kicks.answer_as_watcher();
  EXPECT_FALSE(kicks.watcher_wanted(soon));
}

}  // namespace
}  // namespace hmc
