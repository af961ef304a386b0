// A put that is complete at this end and fails at the other is reported by a flush that covers it, and by no other.
#include <cstdlib>

#include "transport/one_transport.h"
#include "transport/shm/operations.h"

namespace hmc::testing {
namespace {

class ShmFlushes : public ::testing::Test {
 protected:
  // A put at level local that its user takes for done.
  shm::Operation& posted() {
    shm::Operation put;
    put.number = operations.next_number();
    put.level = Complete::local;
    return operations.add(std::move(put));
  }
  void ends(const shm::Operation& put, Status failure = {}) {
    const auto owned = operations.remove(put);
    owned->failure = std::move(failure);
    if (!owned->failure.ok()) operations.failed_late(*owned);
    operations.end_flushes();
  }
  void flush(Done& done) {
    operations.flush(&done);
    operations.end_flushes();
  }

  const Status stale{Code::stale, "closed"};
  shm::Operations operations;
};

TEST_F(ShmFlushes, AFailureBehindTheFlushIsNotItsOwn) {
  Done first, second;
  const shm::Operation& covered = posted();
  flush(first);
  const shm::Operation& later = posted();
  ends(later, stale);
  EXPECT_EQ(first.count(), 0);
  ends(covered);
  EXPECT_EQ(first.count(), 1);
  HMC_EXPECT_OK(Status(first.status()));
  flush(second);
  EXPECT_EQ(second.count(), 1);
  EXPECT_EQ(second.status().code(), Code::stale);
}

TEST_F(ShmFlushes, TheOldestThatCoversItReportsAFailureOnce) {
  Done before, first, second, after;
  const shm::Operation& early = posted();
  flush(before);
  const shm::Operation& put = posted();
  flush(first);
  flush(second);
  ends(put, stale);
  ends(early);
  HMC_EXPECT_OK(Status(before.status()));
  EXPECT_EQ(first.status().code(), Code::stale);
  HMC_EXPECT_OK(Status(second.status()));
  flush(after);
  for (const Done* done : {&before, &first, &second, &after}) EXPECT_EQ(done->count(), 1);
  HMC_EXPECT_OK(Status(after.status()));
}

// By the ring, where only the peer finds that the region is closed.
TEST_F(ShmFlushes, ARefusedPutIsReportedByTheFlushBehindIt) {
  setenv("HMC_SHM_PTRACE", "0", 1);
  std::string reason;
  const auto pair = Pair::create(factory_of("shm"), reason);
  unsetenv("HMC_SHM_PTRACE");
  ASSERT_TRUE(pair) << reason;
  const std::size_t bytes = lengthy(64U << 20);
  constexpr std::size_t small = 1000;
  const Area local(*pair->a().node, bytes, false), target(*pair->b().node, bytes, false);
  Area closed(*pair->b().node, small, false);
  fill_pattern(local.span(), 1);
  const auto to_target = pair->import(pair->a(), target), to_closed = pair->import(pair->a(), closed);
  closed.deregister();
  const auto flush = [&](Done& done) {
    const auto lock = pair->a().lock();
    return pair->a().endpoint->flush(&done);
  };
  Done first, second;
  Transfer large(pair->a(), local, *to_target), refused(pair->a(), local, *to_closed, {0}, {0}, small);
  large.set_level(Complete::local);
  refused.set_level(Complete::local);
  HMC_ASSERT_OK(large.put());
  HMC_ASSERT_OK(flush(first));
  ASSERT_FALSE(first.done());
  HMC_ASSERT_OK(refused.put());
  ASSERT_TRUE(pair->until([&] { return first.done() && refused.done.done(); }));
  HMC_EXPECT_OK(Status(refused.done.status()));
  HMC_EXPECT_OK(Status(first.status()));
  EXPECT_EQ(first_mismatch(target.span(), 1), -1);
  HMC_ASSERT_OK(flush(second));
  ASSERT_TRUE(pair->until([&] { return second.done(); }));
  EXPECT_EQ(second.status().code(), Code::stale) << second.status().str();
}

}  // namespace
}  // namespace hmc::testing
