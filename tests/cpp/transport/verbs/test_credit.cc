// Credit for signals at the receiver.
#include <gtest/gtest.h>

#include "transport/verbs/messages.h"

namespace hmc::verbs {
namespace {

TEST(VerbsCredit, EndsWithTheReceiversSlots) {
  Credit credit;
  for (std::uint32_t i = 1; i <= credits; ++i) {
    ASSERT_TRUE(credit.any());
    EXPECT_EQ(credit.spend(), i);
  }
  EXPECT_FALSE(credit.any());
  EXPECT_TRUE(credit.on_told(1));
  EXPECT_TRUE(credit.any());
  EXPECT_TRUE(credit.taken(1));
  EXPECT_FALSE(credit.taken(2));
}

TEST(VerbsCredit, OlderCountsAreIgnoredAndImpossibleOnesRefused) {
  Credit credit;
  for (int i = 0; i < 3; ++i) static_cast<void>(credit.spend());
  EXPECT_TRUE(credit.on_told(2));
  EXPECT_TRUE(credit.on_told(1));
  EXPECT_TRUE(credit.taken(2));
  EXPECT_FALSE(credit.on_told(4));
  credit.refund();
  EXPECT_FALSE(credit.on_told(3));
}

TEST(VerbsCredit, IsReturnedByHalves) {
  Credit credit;
  for (unsigned i = 0; i + 1 < credits / 2; ++i) credit.consume();
  EXPECT_FALSE(credit.due());
  credit.consume();
  EXPECT_TRUE(credit.due());
  EXPECT_EQ(credit.tell(), credits / 2);
  EXPECT_FALSE(credit.due());
}

}  // namespace
}  // namespace hmc::verbs
