// Operation and OperationTable: the puts, gets and flushes of one endpoint, from the post to the completion.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "transport/run_cursor.h"

namespace hmc::kit {

// One put or get that has not ended. A transport derives what is peculiar to its wire.
struct Operation {
  virtual ~Operation() = default;

  RunCursor cursor;            // what has not been handed over yet
  Completion* done = nullptr;  // null once completed: a put at level local that has not arrived
  StreamPoint* after = nullptr;
  std::uint64_t number = 0;  // order of posting
  std::size_t bytes = 0;
  std::size_t moved = 0;
  unsigned in_flight = 0;  // parts that the wire, a device or the peer may still read or write
  Complete level = Complete::remote;
  bool is_put = true;
  bool started = false;      // some of it has been handed over
  bool unconfirmed = false;  // ended by force: the peer has not confirmed that it leaves the memory here alone
  Status failure;
  Bytes signal;  // to be sent once the bytes are in place; a transport that sends it along clears it

  [[nodiscard]] bool handed_over() const noexcept { return cursor.at_end() || !failure.ok(); }
  // Nothing of it can be read or written any more: only then may it complete.
  [[nodiscard]] bool ended() const noexcept { return in_flight == 0 && handed_over(); }
};

// How a table makes and reuses a transport's operations.
struct OperationType {
  std::unique_ptr<Operation> (*make)();
  void (*renew)(Operation& operation);  // as if newly made, but for the capacity of `signal`
};

template <class T>
constexpr OperationType operation_type() {
  return {[]() -> std::unique_ptr<Operation> { return std::make_unique<T>(); },
          [](Operation& operation) {
            T& own = static_cast<T&>(operation);
            Bytes signal = std::move(own.signal);
            signal.clear();
            std::destroy_at(&own);
            std::construct_at(&own)->signal = std::move(signal);
          }};
}

// Operations in order of posting. A callback may post, cancel, or destroy the endpoint and with it the table: every call that
// completes something takes it out of the table first, and touches nothing afterwards. Engine lock held.
class OperationTable {
  using Queue = std::deque<std::pair<std::uint64_t, std::unique_ptr<Operation>>>;  // by number

 public:
  // An operation that has left the table, and the flushes that waited for it alone.
  class Ended {
   public:
    [[nodiscard]] Operation& operation() noexcept { return *operation_; }

   private:
    friend class OperationTable;
    std::unique_ptr<Operation> operation_;
    std::vector<std::pair<Completion*, Status>> flushes_;
  };

  explicit OperationTable(OperationType type) noexcept : type_(type) {}

  [[nodiscard]] bool empty() const noexcept { return operations_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return operations_.size(); }
  [[nodiscard]] bool flushing() const noexcept { return !flushes_.empty(); }
  [[nodiscard]] const Queue& all() const noexcept { return operations_; }
  // Null: there is none.
  [[nodiscard]] Operation* find(std::uint64_t number) const;
  [[nodiscard]] Operation* find(const Completion* done) const;
  // The oldest that is newer than `number`, else the oldest. Not empty.
  [[nodiscard]] Operation& next(std::uint64_t number) const;

  // The newest, with its number.
  Operation& add(bool is_put);
  // One that was not accepted after all: the newest put or get, removed without a completion.
  void discard(Operation& operation);
  // Takes an operation out, to be completed with its failure.
  [[nodiscard]] Ended take(Operation& operation);
  void complete(Ended&& ended);
  // Completes when every put posted before has ended. The failure of one that was completed before it failed is reported here.
  void flush(Completion* done);
  // Completes everything with `reason`, operations first.
  void end_all(const Status& reason);

 private:
  struct Flush {
    std::uint64_t before;  // number of the first operation that it does not cover
    std::size_t puts;      // that it covers and that have not ended
    Completion* done;
    Status failure;
  };
  static constexpr std::size_t max_spare = 16;

  [[nodiscard]] Queue::const_iterator place_of(std::uint64_t number) const;
  void put_ended(const Operation& put, Ended& ended);

  const OperationType type_;
  Queue operations_;
  std::vector<std::unique_ptr<Operation>> spare_;
  std::deque<Flush> flushes_;
  std::uint64_t last_number_ = 0;
  std::size_t puts_ = 0;  // in the table
  Status late_failure_;   // of a put that was completed before, for the next flush
};

}  // namespace hmc::kit
