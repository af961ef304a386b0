// Link: the working half of a ucx endpoint.
//
// Where network cards join the two, a put is a number of ucp_put_nbx() and, once the last of them is handed over, a flush of UCX's
// endpoint. Elsewhere (TCP, shared memory) bytes go in active messages, which the peer's link checks and copies, and answers: what
// UCX emulates there itself writes wherever a message says, and ends the process when a connection breaks under it (1.13 and 1.22
// do). All are sent eagerly: for endpoints that outlive a peer's death UCX's rendezvous is the same messages with a question before
// them (it leaves out the kernel's single copy and TCP's put there). Signals are active messages. What is under way is bounded, so
// that signals do not wait behind a large put.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "transport/run_cursor.h"
#include "transport/transport.h"
#include "transport/ucx/region.h"
#include "transport/ucx/wire.h"
#include "transport/ucx/worker.h"

namespace hmc::ucx {

// All calls with the engine lock held, and none from within UCX but place() and pass().
class Link : public std::enable_shared_from_this<Link> {
 public:
  static constexpr unsigned signal_id = 1;  // of active messages

  static Result<std::shared_ptr<Link>> create(std::shared_ptr<const LibraryContext> context, std::shared_ptr<Regions> regions,
                                              EndpointSink& sink);
  ~Link();

  // ---- of Endpoint ----
  Result<Blob> address();
  Status connect(const Blob& peer_address, Completion* done);
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body);
  Status flush(Completion* done);
  Status cancel(Completion* done);
  // Ends pending operations with `closed`. The sink is not called any more.
  void close();

  // ---- of the transport ----
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  // UCX's progress wants to be called.
  [[nodiscard]] bool busy() const noexcept { return worker_->is_open(); }
  bool poll();
  // Copies of devices, and their streams, wake nobody.
  bool arm() { return !worker_->is_open() || (!due() && !uses_devices() && worker_->arm()); }
  // Something was begun here or is being served that has not ended.
  [[nodiscard]] bool has_work() const noexcept {
    return worker_->is_open() && (!ops_.empty() || !flushes_.empty() || !waiting_signals_.empty() || !answers_.empty() ||
                                  !serving_.empty() || signal_requests_ != 0 || answer_requests_ != 0 || worker_->has_news());
  }
  // UCX's transports that carry it; once connected.
  [[nodiscard]] const std::string& lanes() const noexcept { return lanes_; }

  // ---- of the worker ----
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }
  void on_ended(Request& request);
  // Bytes of a put or get: copied to where they belong, if the peer may have that. False: it cannot have sent them.
  bool place(MessageHead& head, ByteSpan body);
  // Such a message, in its turn, that nothing else is to be done for; no other waits to be delivered.
  bool pass(const MessageHead& head) noexcept;
  void on_message(const MessageHead& head, ByteSpan body, bool sound);
  void lost(ucs_status_t status);

 private:
  static constexpr std::size_t chunk_bytes = 512 << 10;        // one call of UCX's
  static constexpr std::size_t device_chunk_bytes = 64 << 20;  // the same of device memory, which is not copied then and there
  static constexpr std::size_t window_bytes = 4 << 20;
  static constexpr unsigned window_requests = 512;
  static constexpr std::size_t post_bytes = 1 << 20;  // handed over at a time: UCX may copy them then and there
  static constexpr unsigned signals_under_way = 64;
  static constexpr std::size_t max_waiting_signals = 64;
  static constexpr unsigned answers_under_way = 64;
  static constexpr std::size_t max_early = 4096;
  static constexpr std::size_t max_serving = 4096;  // gets of the peer, and its failed puts
  static constexpr unsigned flushes_under_way = 2;

  // One put or get that has not ended; a put, until it has been flushed.
  struct Op {
    RunCursor cursor;
    Completion* done = nullptr;  // null: has been told, at Complete::local
    std::uint64_t number = 0;    // order of posting
    std::uint64_t stamp = 0;     // of a put: order in which they were handed over whole; 0: not yet
    std::size_t bytes = 0;
    std::size_t moved = 0;
    unsigned under_way = 0;  // requests
    Complete level = Complete::remote;
    bool is_put = true;
    bool begun = false;
    bool on_device = false;
    bool in_messages = false;       // some of it goes in messages
    bool direct = false;            // some does not
    bool flushed = false;           // of a put, what does not
    bool ended = false;             // of a put in messages: the peer has answered, or knows the end and will
    std::uint64_t last_region = 0;  // that a message of it named
    StreamPoint* after = nullptr;   // not begun before that is reached
    Status failure;
    Bytes signal;
  };
  // A piece of a get that the peer was asked for.
  struct Ask {
    std::uint64_t op;
    std::byte* here;
    std::size_t bytes;
    std::size_t got;
  };
  // What the peer has asked for.
  struct Serving {
    MessageHead head;
    std::size_t sent;
  };
  struct Early {
    MessageHead head;
    Bytes body;
  };
  using Ops = std::map<std::uint64_t, std::unique_ptr<Op>>;
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  Link(std::shared_ptr<Worker> worker, std::shared_ptr<Regions> regions, EndpointSink& sink) noexcept
      : worker_(std::move(worker)), regions_(std::move(regions)), sink_(&sink) {}

  // link.cc
  void maybe_connected();
  void fail(const Status& reason);
  void end_all(const Status& reason);
  [[nodiscard]] Status not_ready() const;
  [[nodiscard]] Status loss(ucs_status_t status) const;
  void take(const MessageHead& head, ByteSpan body);
  Request& request(Request::Kind kind);
  void release(Request& request);
  [[nodiscard]] unsigned& under_way(Request::Kind kind) noexcept;
  // The parameters of a call of UCX's that reports to `request`.
  static ucp_request_param_t reporting_to(Request& request) noexcept;
  // What such a call returned. True: it is over, with request.status.
  static bool over(Request& request, ucs_status_ptr_t result) noexcept;

  // link_ops.cc
  [[nodiscard]] bool direct(MemoryKind kind) const noexcept { return direct_[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] bool uses_devices() const noexcept { return device_ops_ != 0; }
  void end_in_messages(Op& op);
  Status post(const TransferOp& op, Completion* done, bool is_put);
  // Hands over some of what waits; true if anything was.
  bool advance();
  // Whether something waits that UCX has room for.
  [[nodiscard]] bool due() const noexcept {
    return ready_ && ((!turns_.empty() && room_for_data()) || (!waiting_signals_.empty() && room_for_signal()) ||
                      (!(answers_.empty() && serving_.empty()) && room_for_answer()) || flush_due());
  }
  bool hand_over(std::size_t budget);
  bool move(Op& op, const RunPiece& piece, bool last);
  bool ask(Op& op, const RunPiece& piece);
  void handed_over(Op& op);
  void settle(Ops::iterator place);
  void finish(Ops::iterator place);
  void end_flushes();
  // A message; its body is copied. False: the link has failed.
  bool send(Request::Kind kind, MessageHead head, ByteSpan front, ByteSpan back);
  // The same without a copy: the body stays until the request has ended.
  bool post_message(Request& request, MessageHead head, const void* body, std::size_t bytes, bool& over_now);
  bool send_waiting();

  // link_direct.cc
  Status look_at(Op& op, std::span<const Run> runs) const;
  bool release_held();
  bool move_direct(Op& op, const RunPiece& piece);
  void refuse(Op& op, ucs_status_t status);
  // Of a request: whether it tells of the connection's end.
  static bool breaks(ucs_status_t status) noexcept;
  bool flush_puts();
  void flushed(std::uint64_t stamp);

  // link_serve.cc
  bool place_put(const MessageHead& head, ByteSpan body);
  void on_put(const MessageHead& head, ByteSpan body);
  void on_put_done(const MessageHead& head);
  void on_get(const MessageHead& head);
  void on_got(const MessageHead& head);
  void on_get_failed(const MessageHead& head);
  bool send_answers();
  void end_ask(std::map<std::uint64_t, Ask>::iterator asked);
  [[nodiscard]] bool room_for_data() const noexcept { return data_requests_ < window_requests && data_bytes_ < window_bytes; }
  [[nodiscard]] bool room_for_signal() const noexcept { return signal_requests_ < signals_under_way; }
  [[nodiscard]] bool room_for_answer() const noexcept { return answer_requests_ < answers_under_way; }
  [[nodiscard]] bool flush_due() const noexcept { return flush_asked_ < last_stamp_ && flush_requests_ < flushes_under_way; }

  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Regions> regions_;
  EndpointSink* sink_;
  std::uint64_t token_ = random_u64();
  std::uint64_t peer_token_ = 0;
  bool ready_ = false;
  bool direct_[memory_kinds] = {};  // of host memory, network cards move the bytes; of a device's, UCX's way for it does
  std::size_t piece_ = max_body;
  bool closed_ = false;
  bool advancing_ = false;
  Status failure_;
  Completion* connecting_ = nullptr;
  Engine::TimerId patience_ = 0;
  std::string lanes_;

  std::vector<std::unique_ptr<Request>> requests_;  // all there are
  std::vector<Request*> free_requests_;
  std::vector<Request*> free_messages_;  // with room for a body
  unsigned data_requests_ = 0, signal_requests_ = 0, flush_requests_ = 0, answer_requests_ = 0;
  std::size_t data_bytes_ = 0;

  std::uint64_t next_sent_ = 0;
  std::uint64_t next_taken_ = 0;
  std::map<std::uint64_t, Early> early_;  // came before their turn
  struct Waiting {
    MessageHead head;
    Bytes body;
  };
  std::deque<Waiting> waiting_signals_;  // of puts

  std::map<std::uint64_t, Ask> asks_;
  std::uint64_t last_ask_ = 0;
  std::deque<MessageHead> answers_;
  std::deque<Serving> serving_;
  std::map<std::uint64_t, Code> failed_puts_;  // of the peer, until it tells their end

  Ops ops_;
  std::deque<std::uint64_t> turns_;   // operations with something left to hand over
  std::vector<std::uint64_t> held_;   // that wait for a stream
  std::size_t device_ops_ = 0;        // with memory of devices
  std::deque<std::uint64_t> handed_;  // puts that were, in that order, not flushed yet
  std::uint64_t last_number_ = 0;
  std::uint64_t last_stamp_ = 0;
  std::uint64_t flush_asked_ = 0;  // up to that stamp
  std::uint64_t flushed_ = 0;
  std::deque<Flush> flushes_;
};

}  // namespace hmc::ucx
