// Transfers: the bytes of an endpoint's puts and gets: what is posted next, on which rail, and what follows when it has been
// executed.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transport/kit/operations.h"
#include "transport/verbs/outbox.h"
#include "transport/verbs/rail.h"

namespace hmc::verbs {

// `in_flight`: work requests, and what is to be posted again.
struct Op final : kit::Operation {
  RunCursor start;
  std::size_t left = 0;     // to be posted
  std::uint32_t rails = 0;  // a bit for each that has carried some of it
  int numa_node = -1;       // of a device here
  bool on_device = false;   // bytes land in memory of a device
  bool settled = false;
  bool over_again = false;  // from the start, once nothing is in flight: a rail was lost before it was settled there
};

// The Link owns it, and ends an operation where a call returns it. Engine lock held.
class Transfers {
 public:
  Transfers(const kit::OperationTable& operations, const Rails& rails, Outbox& outbox) noexcept
      : operations_(operations), rails_(rails), outbox_(outbox) {}

  // Something is to be posted.
  [[nodiscard]] bool waits() const noexcept { return !turns_.empty() || !redo_.empty(); }
  [[nodiscard]] Op* find(std::uint64_t number) const { return static_cast<Op*>(operations_.find(number)); }

  // Readies a new operation for its turn.
  static void prepare(Op& op);
  void begin(std::uint64_t number) { turns_.push_back(number); }
  void withdraw(std::uint64_t number) { std::erase(turns_, number); }
  // Data of rails that are gone, then of the operations whose turn it is.
  void fill(Rail& rail, Batch& batch);

  // A work request of its has been executed, or nothing of it is in flight any more. Returns it if it has ended, else null.
  [[nodiscard]] Op* executed(const Record& one);
  [[nodiscard]] Op* step(Op& op);
  // All operations that go there end with `reason`, each once nothing of it is in flight.
  void condemn(const RemoteRegion* closed, SendQueue& queue, const Status& reason);
  // Those of which nothing is any more: to be ended once the peer has answered.
  [[nodiscard]] std::vector<std::uint64_t> take_condemned() noexcept { return std::exchange(condemned_, {}); }
  [[nodiscard]] bool any_condemned() const noexcept { return !condemned_.empty(); }
  // A record of a queue that starts over. False: of an operation that has failed, and it is not posted again.
  [[nodiscard]] bool again(const Record& one);
  // A record of a rail that is gone, which has not been executed or may not have been.
  void doubt(const Record& one);
  // The operations that step() is to be called for since a rail is gone.
  [[nodiscard]] std::vector<std::uint64_t> idle_without(const Rail& gone) const;
  void stop() noexcept;

 private:
  static constexpr std::size_t chunk_bytes = 512 << 10;     // of one operation before the next has its turn
  static constexpr std::size_t split_bytes = 256 << 10;     // operations up to this size take one rail
  static constexpr std::size_t max_begun = 64;              // operations that take turns
  static constexpr std::uint32_t former_life = 0x80000000;  // in Op::rails: one that is gone has carried some of it

  void fill_op(Rail& rail, Batch& batch, Op& op);
  [[nodiscard]] bool may_follow(const Rail& rail, const Op& op) const noexcept;
  void condemn(Op& op, const Status& reason);
  bool settle(Op& op);

  const kit::OperationTable& operations_;
  const Rails& rails_;
  Outbox& outbox_;
  std::deque<std::uint64_t> turns_;  // operations with something left to post
  std::deque<Record> redo_;          // data of rails that are gone
  // Operations that failed for an access error. A dead process's memory is taken from it before its queue pairs are: only once
  // something is answered again is it known that the peer lives and has closed the region.
  std::vector<std::uint64_t> condemned_;
};

}  // namespace hmc::verbs
