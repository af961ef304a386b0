// Link: the working half of a verbs endpoint: an outbound and an inbound queue pair to one peer, and what is under way on them.
//
// A put is RDMA writes, a get RDMA reads; a signal is a send into buffers that the peer has posted, as many as it has given credit
// for, on the same queue pair: so it lands after everything written before it. What is under way is bounded, so that signals do not
// wait behind a large put.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "progress/engine.h"
#include "transport/run_cursor.h"
#include "transport/transport.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/region.h"

namespace hmc::verbs {

inline constexpr std::size_t slot_bytes = 4096;  // one packet where the MTU is 4096
inline constexpr std::size_t max_signal = slot_bytes - head_bytes;
inline constexpr unsigned credits = 32;  // signals that may wait at the receiver
// Besides, for messages that return credit: one is sent per half of the credits, so at most two wait, and one more is being taken;
// and one when the queue pair has started over.
inline constexpr unsigned spare_slots = 4;
inline constexpr unsigned slots = credits + spare_slots;

class Link;

// What the links of one transport share. Outlives the transport while links or regions do.
struct Shared {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Nics> nics = std::make_shared<Nics>();
  Patience patience;
  std::unordered_map<std::uint32_t, std::weak_ptr<Link>> links;  // by number, which their work requests carry
  std::uint32_t last_number = 0;
};

// All calls with the engine lock held.
class Link : public std::enable_shared_from_this<Link> {
 public:
  static Result<std::shared_ptr<Link>> create(const std::shared_ptr<Shared>& shared, Nic& nic, EndpointSink& sink);
  ~Link();

  // ---- of Endpoint ----
  Result<Blob> address();
  Status connect(const Blob& peer_address);
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body);
  Status flush(Completion* done);
  Status cancel(Completion* done);
  // Ends pending operations with `closed`. The sink is not called any more.
  void close();

  // ---- of the transport ----
  static std::uint32_t number_of(const ibv_wc& completion) noexcept { return static_cast<std::uint32_t>(completion.wr_id >> 32); }
  void on_completion(const ibv_wc& completion);
  // Posts what there is room for.
  void advance();
  bool waiting_turn = false;  // the transport's: it has been noted for advance()

 private:
  static constexpr unsigned depth = 256;       // work requests outbound; a power of two
  static constexpr unsigned data_depth = 192;  // of these for data, so that signals always find room
  static constexpr unsigned batch_size = 32;   // posted at once; the last of each reports
  static constexpr std::size_t window_bytes = 2 << 20;
  static constexpr std::size_t chunk_bytes = 512 << 10;  // of one operation before the next has its turn
  static constexpr std::size_t max_begun = 64;           // operations that take turns
  static constexpr std::size_t max_waiting_signals = 64;
  static constexpr std::uint32_t sequence_mask = 0x7FFFFFFF;  // of work requests; the bit above marks receives
  static constexpr std::uint32_t receive_bit = 0x80000000;

  // One put or get that has not ended.
  struct Op {
    RunCursor cursor;
    Completion* done = nullptr;
    std::uint64_t number = 0;  // order of posting
    std::size_t bytes = 0;
    std::size_t moved = 0;
    unsigned under_way = 0;  // work requests
    bool is_put = true;
    bool begun = false;
    Status failure;
    Bytes signal;
  };
  // One work request under way.
  struct Record {
    enum class Kind : std::uint8_t { write, read, message } kind = Kind::message;
    std::uint64_t op = 0;  // of a message: the put that it is attached to, if any
    RunPiece piece{};      // data
    unsigned slot = 0;     // message
    std::size_t bytes = 0;
    bool credited = false;  // message: a signal
  };
  struct WaitingSignal {
    std::uint64_t op;
    Bytes bytes;
  };
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };
  struct Batch {
    std::array<ibv_send_wr, batch_size> work;
    std::array<ibv_sge, batch_size> parts;
    unsigned count = 0;
    [[nodiscard]] bool full() const noexcept { return count == batch_size; }
  };

  Link(std::shared_ptr<Shared> shared, Nic& nic, EndpointSink& sink) noexcept
      : shared_(std::move(shared)), nic_(nic), sink_(&sink) {}

  // link.cc
  Status open();
  Status not_ready() const;
  void fail(const Status& reason);
  void end_all(const Status& reason);
  void end_flushes();
  [[nodiscard]] std::uint32_t sequence_of(std::uint32_t first, std::uint32_t generation) const noexcept;

  // link_send.cc
  Status post(const TransferOp& op, Completion* done, bool is_put);
  void fill(Batch& batch);
  void fill_data(Batch& batch);
  void add(Batch& batch, const Record& record);
  void add_message(Batch& batch, MessageKind kind, std::uint64_t op, ByteSpan head, ByteSpan body);
  bool submit(Batch& batch);
  [[nodiscard]] unsigned posted() const noexcept { return (next_ - oldest_) & sequence_mask; }
  [[nodiscard]] bool room_for_signal() const noexcept;
  [[nodiscard]] bool room_for_data() const noexcept { return data_posted_ < data_depth && bytes_posted_ < window_bytes; }
  [[nodiscard]] Record& record(std::uint32_t sequence) noexcept { return records_[sequence % depth]; }
  [[nodiscard]] std::byte* send_slot(unsigned slot) const noexcept { return memory_.get() + (slots + slot) * slot_bytes; }

  // link_complete.cc
  void on_sent(const ibv_wc& completion);
  void retire(const Record& record);
  void forget(const Record& record);
  void broke(const ibv_wc& completion);
  void condemn(std::uint64_t number, const Status& reason);
  void restart_outbound();
  void finish(std::map<std::uint64_t, std::unique_ptr<Op>>::iterator place);
  void on_received(const ibv_wc& completion);
  bool take_message(unsigned slot, std::size_t bytes);
  Status post_receive(unsigned slot);
  Status restart_inbound();
  [[nodiscard]] std::byte* receive_slot(unsigned slot) const noexcept { return memory_.get() + slot * slot_bytes; }

  std::shared_ptr<Shared> shared_;
  Nic& nic_;
  EndpointSink* sink_;
  std::uint32_t number_ = 0;
  bool ready_ = false;
  bool closed_ = false;
  bool advancing_ = false;
  Status failure_;
  Address own_;
  Address peer_;

  struct FreePages {
    void operator()(std::byte* pages) const noexcept;
  };
  std::unique_ptr<std::byte, FreePages> memory_;  // slots that receive, then slots that send
  ibv_mr* memory_handle_ = nullptr;
  std::unique_ptr<QueuePair> outbound_;
  std::unique_ptr<QueuePair> inbound_;

  // Outbound.
  std::uint32_t generation_ = 0;
  bool broken_ = false;  // an access error: everything posted comes back, then it starts over
  std::array<Record, depth> records_;
  std::uint32_t oldest_ = 0;  // sequences of work requests
  std::uint32_t next_ = 0;
  unsigned data_posted_ = 0;
  std::size_t bytes_posted_ = 0;
  std::deque<Record> again_;  // were under way behind the failed one
  // Operations that failed so. A dead process's memory is taken from it before its queue pairs are: only once something is answered
  // again is it known that the peer lives and has closed the region.
  std::vector<std::uint64_t> condemned_;
  bool probe_ = false;  // something is to be sent for that
  std::vector<unsigned> free_slots_;
  std::uint32_t signals_sent_ = 0;
  std::uint32_t signals_taken_ = 0;  // of these, by the peer, as it told
  std::deque<WaitingSignal> waiting_signals_;

  // Inbound.
  std::uint32_t inbound_generation_ = 0;
  bool inbound_broken_ = false;
  unsigned receives_posted_ = 0;
  std::uint32_t consumed_ = 0;
  std::uint32_t consumed_told_ = 0;

  std::map<std::uint64_t, std::unique_ptr<Op>> ops_;  // by number
  std::deque<std::uint64_t> turns_;                   // operations with something left to post
  std::uint64_t last_number_ = 0;
  std::deque<Flush> flushes_;
};

}  // namespace hmc::verbs
