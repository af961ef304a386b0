// Transfers: the bytes of one endpoint's puts and gets.
//
// Where network cards join the two, a put is a number of ucp_put_nbx() and, once the last of them is handed over, a flush of UCX's
// endpoint. Elsewhere (TCP, shared memory) bytes go in active messages, which the peer's Server checks and copies, and answers:
// what UCX emulates there itself writes wherever a message says, and ends the process when a connection breaks under it (1.13
// and 1.22 do). All are sent eagerly: for endpoints that outlive a peer's death UCX's rendezvous is the same messages with a
// question before them (it leaves out the kernel's single copy and TCP's put there).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "transport/kit/operations.h"
#include "transport/ucx/channel.h"
#include "transport/ucx/region.h"

namespace hmc::ucx {

// One put or get that has not ended; a put, until it has been flushed. `in_flight`: requests.
struct Op final : kit::Operation {
  std::uint64_t stamp = 0;  // of a put: order in which they were handed over whole; 0: not yet
  bool on_device = false;
  bool in_messages = false;       // some of it goes in messages
  bool direct = false;            // some does not
  bool flushed = false;           // of a put, what does not
  bool answered = false;          // of a put in messages: the peer has answered, or knows the end and will
  std::uint64_t last_region = 0;  // that a message of it named
};

// Turns: the operations with something left to hand over. Puts in messages begin only while few are unanswered, so that a peer that
// the answers do not reach keeps few of them. Transfers owns it. Engine lock held.
class Turns {
 public:
  [[nodiscard]] bool empty() const noexcept { return begun_.empty(); }
  // A new one.
  void add(Op& op) {
    if (awaits_answer(op) && unanswered_ == max_unanswered_puts) return later_.push_back(&op);
    if (awaits_answer(op)) ++unanswered_;
    begun_.push_back(&op);
  }
  // The next one, until it is put back.
  [[nodiscard]] Op& take() noexcept {
    Op& first = *begun_.front();
    begun_.pop_front();
    return first;
  }
  void put_back(Op& op) { begun_.push_back(&op); }
  // Nothing more of it is handed over, whose end is.
  void remove(Op& op) noexcept { std::erase(begun_, &op); }
  // Nothing of it has been handed over, nor will be.
  void withdraw(Op& op) {
    std::erase(later_, &op);
    if (std::erase(begun_, &op) != 0 && awaits_answer(op)) answered();
  }
  // The peer has answered a put.
  void answered() {
    --unanswered_;
    if (later_.empty()) return;
    Op& next = *later_.front();
    later_.pop_front();
    add(next);
  }
  void clear() noexcept {
    begun_.clear();
    later_.clear();
    unanswered_ = 0;
  }

 private:
  static bool awaits_answer(const Op& op) noexcept { return op.is_put && op.in_messages; }

  std::deque<Op*> begun_, later_;
  std::size_t unanswered_ = 0;  // puts in messages that have begun
};

// The endpoint owns it. Engine lock held.
class Transfers {
 public:
  Transfers(UcxEndpoint& endpoint, const kit::OperationTable& operations, Worker& worker, Channel& channel,
            Requests& requests) noexcept
      : endpoint_(endpoint), operations_(operations), worker_(worker), channel_(channel), requests_(requests) {}

  // By kind of memory. Of host memory, network cards move the bytes; of a device's, UCX's way for it does.
  std::array<bool, memory_kinds> ways{};
  [[nodiscard]] bool direct(MemoryKind kind) const noexcept { return ways[static_cast<std::size_t>(kind)]; }

  // A new one, not empty. `reached`: its stream has got there.
  void add(Op& op, bool reached);
  void withdraw(Op& op);
  void stop() noexcept;
  [[nodiscard]] bool uses_devices() const noexcept { return device_ops_ != 0; }
  // Whether something waits that UCX has room for.
  [[nodiscard]] bool due() const noexcept { return (!turns_.empty() && requests_.room_for(Request::Kind::data)) || flush_due(); }
  // Hands over some of what waits; true if anything was.
  bool advance();
  [[nodiscard]] bool holds() const noexcept { return !held_.empty(); }
  // Begins what waited for streams that are there now. A failing stream ends its operation.
  bool release_held();

  void on_ended(std::uint64_t number, std::size_t bytes, ucs_status_t status);
  void on_flushed(std::uint64_t stamp);
  // Bytes of a get: copied to where they belong. False: they were not asked for.
  bool place(const MessageHead& head, ByteSpan body);
  void on_put_done(const MessageHead& head);
  void on_got(const MessageHead& head);
  void on_get_failed(const MessageHead& head);

 private:
  static constexpr std::size_t chunk_bytes = 512 << 10;        // one call of UCX's
  static constexpr std::size_t device_chunk_bytes = 64 << 20;  // the same of device memory, which is not copied then and there
  static constexpr std::size_t turn_bytes = 1 << 20;           // handed over at a time: UCX may copy them then and there

  // A piece of a get that the peer was asked for.
  struct Ask {
    std::uint64_t op;
    std::byte* here;
    std::size_t bytes;
    std::size_t got;
  };
  using Asks = std::map<std::uint64_t, Ask>;

  [[nodiscard]] Op* find(std::uint64_t number) const { return static_cast<Op*>(operations_.find(number)); }
  [[nodiscard]] bool flush_due() const noexcept { return flush_asked_ < last_stamp_ && requests_.room_for(Request::Kind::flush); }
  // Hand over a piece. False: the connection has failed, and the operation with it.
  bool move_direct(Op& op, const RunPiece& piece);
  bool move_in_messages(Op& op, const RunPiece& piece);
  bool flush();
  void refuse(Op& op, const Status& reason);
  void handed_over(Op& op);
  void settle(Op& op);
  void end(Op& op);
  void end_ask(Asks::iterator asked);

  UcxEndpoint& endpoint_;
  const kit::OperationTable& operations_;
  Worker& worker_;
  Channel& channel_;
  Requests& requests_;

  Turns turns_;
  std::vector<std::uint64_t> held_;  // that wait for a stream
  std::size_t device_ops_ = 0;       // with memory of devices
  Asks asks_;
  std::uint64_t last_ask_ = 0;
  std::deque<std::uint64_t> handed_;  // puts that were, in that order, not flushed yet
  std::uint64_t last_stamp_ = 0;
  std::uint64_t flush_asked_ = 0;  // up to that stamp
  std::uint64_t flushed_ = 0;
};

}  // namespace hmc::ucx
