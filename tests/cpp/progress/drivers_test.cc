#include "progress/drivers.h"

#include <gtest/gtest.h>

namespace hmc {
namespace {

TEST(Drivers, ArePresentWhileOneDrives) {
  Drivers drivers;
  EXPECT_FALSE(drivers.present());
  drivers.drive();
  EXPECT_TRUE(drivers.present());
  drivers.leave();
  EXPECT_FALSE(drivers.present());
  drivers.announce();
  EXPECT_TRUE(drivers.present());
  drivers.leave_unlocked();
  EXPECT_FALSE(drivers.present());
}

TEST(Drivers, CountEveryRoundAndNothingElse) {
  Drivers drivers;
  const auto before = drivers.driven();
  drivers.announce();
  drivers.leave();
  EXPECT_EQ(drivers.driven(), before);
  drivers.drive();
  const auto driven = drivers.driven();
  EXPECT_NE(driven, before);
  drivers.count();
  EXPECT_NE(drivers.driven(), driven);
}

TEST(Drivers, CountPostsThatPollNothingApart) {
  Drivers drivers;
  const auto driven = drivers.driven(), put_offs = drivers.put_offs();
  drivers.put_off();
  EXPECT_EQ(drivers.driven(), driven);
  EXPECT_NE(drivers.put_offs(), put_offs);
}

}  // namespace
}  // namespace hmc
