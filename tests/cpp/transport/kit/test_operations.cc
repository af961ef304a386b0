// The table of operations: order, flushes, ends.
#include <memory>
#include <vector>

#include "transport/kit/operations.h"
#include "transport/pair.h"

namespace hmc::testing {
namespace {

using kit::Operation;
using kit::OperationTable;

struct Marked final : Operation {
  int mark = 7;
};

class OperationTableTest : public ::testing::Test {
 protected:
  Operation& add(bool is_put, Done& done) {
    Operation& operation = table->add(is_put);
    operation.done = &done;
    return operation;
  }
  void end(std::uint64_t number, Status failure = {}) const {
    Operation* operation = table->find(number);
    ASSERT_NE(operation, nullptr);
    operation->failure = std::move(failure);
    table->complete(table->take(*operation));
  }

  std::unique_ptr<OperationTable> table = std::make_unique<OperationTable>(kit::operation_type<Marked>());
};

TEST_F(OperationTableTest, KeepsTheOrderOfPosting) {
  std::vector<Done> done(4);
  for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(add(i % 2 == 0, done[i]).number, i + 1);
  EXPECT_EQ(table->next(0).number, 1U);
  EXPECT_EQ(table->next(2).number, 3U);
  EXPECT_EQ(table->next(4).number, 1U);  // around
  end(3);
  EXPECT_EQ(done[2].count(), 1);
  EXPECT_EQ(table->next(2).number, 4U);
  EXPECT_EQ(table->find(std::uint64_t{3}), nullptr);
  EXPECT_EQ(table->find(&done[3])->number, 4U);
  EXPECT_EQ(table->find(&done[2]), nullptr);
  for (const std::uint64_t number : {1U, 2U, 4U}) end(number);
  EXPECT_TRUE(table->empty());
}

TEST_F(OperationTableTest, ReusesOperationsAsNew) {
  Done first, second;
  Operation& used = add(true, first);
  static_cast<Marked&>(used).mark = 8;
  used.started = true;
  used.moved = 5;
  used.signal = pattern(9, 1);
  end(used.number, Status(Code::stale, "closed"));
  EXPECT_EQ(first.status().code(), Code::stale);
  Operation& again = add(false, second);
  EXPECT_EQ(&again, &used);  // no allocation
  EXPECT_EQ(static_cast<Marked&>(again).mark, 7);
  EXPECT_TRUE(!again.started && again.moved == 0 && again.signal.empty() && again.failure.ok() && !again.is_put);
  EXPECT_EQ(again.number, 2U);
  end(2);
}

TEST_F(OperationTableTest, FlushWithoutPutsCompletesAtOnce) {
  Done get, flush;
  add(false, get);
  table->flush(&flush);
  EXPECT_EQ(flush.count(), 1);
  HMC_EXPECT_OK(Status(flush.status()));
  end(1);
}

TEST_F(OperationTableTest, FlushCoversThePutsPostedBeforeItOnly) {
  std::vector<Done> done(5);
  Done early, late;
  add(true, done[0]);
  add(false, done[1]);
  add(true, done[2]);
  table->flush(&early);
  add(true, done[3]);
  table->flush(&late);
  add(true, done[4]);
  end(4);
  end(5);
  EXPECT_EQ(early.count() + late.count(), 0);
  end(3);
  EXPECT_EQ(early.count() + late.count(), 0);
  end(1);  // the get is still pending
  EXPECT_EQ(early.count(), 1);
  EXPECT_EQ(late.count(), 1);
  end(2);
}

TEST_F(OperationTableTest, FlushCompletesBehindTheOperationsItWaitedFor) {
  std::vector<int> order;
  Done put, flush;
  put.then = [&] { order.push_back(1); };
  flush.then = [&] { order.push_back(2); };
  add(true, put);
  table->flush(&flush);
  end(1);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

// A put at level local was completed before it failed.
TEST_F(OperationTableTest, LateFailureGoesToTheFirstFlushThatCoversIt) {
  Done before, first, second, third;
  Done put;
  add(true, put);
  table->flush(&before);
  table->add(true);  // completed already
  table->flush(&first);
  table->flush(&second);
  end(2, Status(Code::stale, "closed"));
  end(1);
  HMC_EXPECT_OK(Status(before.status()));
  EXPECT_EQ(first.status().code(), Code::stale);
  HMC_EXPECT_OK(Status(second.status()));
  table->add(true);
  end(3, Status(Code::stale, "closed"));
  table->flush(&third);
  EXPECT_EQ(third.status().code(), Code::stale);
}

TEST_F(OperationTableTest, EndAllSaysHowMuchWasMovedAndWhatIsUnconfirmed) {
  Done put, get, flush;
  Operation& one = add(true, put);
  one.bytes = 100;
  one.moved = 40;
  add(false, get).unconfirmed = true;
  table->flush(&flush);
  table->end_all(Status(Code::peer_lost, "gone"));
  EXPECT_EQ(put.status().code(), Code::peer_lost);
  EXPECT_NE(put.status().message().find("40 of 100 bytes"), std::string::npos);
  EXPECT_EQ(put.status().message().find("may still"), std::string::npos);
  EXPECT_NE(get.status().message().find("may still access"), std::string::npos);
  EXPECT_EQ(flush.status().code(), Code::peer_lost);
  EXPECT_TRUE(table->empty());
}

TEST_F(OperationTableTest, CallbacksMayDestroyTheTable) {
  for (const bool by_flush : {false, true}) {
    table = std::make_unique<OperationTable>(kit::operation_type<Marked>());
    std::vector<Done> done(3);
    Done flush;
    for (Done& each : done) add(true, each);
    table->flush(&flush);
    (by_flush ? flush : done[1]).then = [&] { table.reset(); };
    table->end_all(Status(Code::closed, "closed"));
    EXPECT_EQ(table, nullptr);
    for (const Done& each : done) EXPECT_EQ(each.count(), 1);
    EXPECT_EQ(flush.count(), 1);
  }
}

TEST_F(OperationTableTest, CallbackOfOneEndMayDestroyTheTable) {
  Done put, flush;
  add(true, put);
  table->flush(&flush);
  put.then = [&] { table.reset(); };
  end(1);
  EXPECT_EQ(put.count(), 1);
  EXPECT_EQ(flush.count(), 1);
}

TEST_F(OperationTableTest, CallbacksMayPost) {
  std::vector<Done> done(50);
  for (std::size_t i = 0; i + 1 < done.size(); ++i) {
    done[i].then = [&, i] { add(true, done[i + 1]); };
  }
  add(true, done[0]);
  for (std::size_t i = 0; i < done.size(); ++i) end(i + 1);
  for (const Done& each : done) EXPECT_EQ(each.count(), 1);
  EXPECT_TRUE(table->empty());
}

}  // namespace
}  // namespace hmc::testing
