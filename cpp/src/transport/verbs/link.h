// Link: the working half of a verbs endpoint: its lanes to one peer, and the operations under way.
//
// A put is RDMA writes, a get RDMA reads. A signal is a send into buffers that the peer has posted, as many as it has given credit
// for, or the immediate of a put's last write, which takes such a buffer, too. Small operations and all signals go by the first
// lane, so that a signal behind a put's writes lands after them; the pieces of large operations go by whichever lane has room, and
// what must come after them is sent when they have been acknowledged. What is under way is bounded, so that signals do not wait
// behind a large put.
//
// A lane that fails hands its share to the others (link_lanes.cc), and is made anew when its ports carry again (link_return.cc).
// So does one whose card neither finishes nor fails what it was given (link_watch.cc). With the last one the link ends.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "progress/engine.h"
#include "transport/run_cursor.h"
#include "transport/transport.h"
#include "transport/verbs/lane.h"
#include "transport/verbs/region.h"
#include "transport/verbs/signal_heads.h"

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
  DeviceMemory devices;
  Patience patience;
  double silence_seconds = 30;                                   // of a card with work, after which a lane is given up
  std::size_t rails = 1;                                         // ports that a link uses
  std::size_t queue_pairs = 1;                                   // lanes per port
  std::unordered_map<std::uint32_t, std::weak_ptr<Link>> links;  // by number, which their work requests carry
  std::uint32_t last_number = 0;
  std::size_t held = 0;  // operations that wait for a stream of a device
};

// All calls with the engine lock held.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // A lane for each card named, at most max_lanes.
  static Result<std::shared_ptr<Link>> create(const std::shared_ptr<Shared>& shared, const std::vector<Nic*>& nics,
                                              EndpointSink& sink);
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
  // Something was begun here that has not ended.
  [[nodiscard]] bool busy() const noexcept {
    return !ops_.empty() || !flushes_.empty() || !waiting_signals_.empty() || !redo_.empty() || !resend_.empty();
  }
  // Begins what has waited for a stream of a device that has got there.
  bool release_held();
  bool waiting_turn = false;  // the transport's: it has been noted for advance()

 private:
  static constexpr std::size_t chunk_bytes = 512 << 10;  // of one operation before the next has its turn
  static constexpr std::size_t split_bytes = 256 << 10;  // operations up to this size take one lane
  static constexpr std::size_t max_begun = 64;           // operations that take turns
  static constexpr std::size_t max_waiting_signals = 64;
  static constexpr std::size_t max_spare_ops = 16;
  static constexpr std::size_t usual_signal = 64;  // bytes that a spare one keeps room for
  static constexpr std::uint64_t receive_bit = 0x80000000;
  static constexpr unsigned lane_shift = 28;
  static constexpr unsigned life_shift = 16;  // in the number of a receive
  static constexpr std::uint64_t life_mask = 0xFFF;
  static constexpr std::uint32_t former_life = 0x80000000;  // in Op::lanes: one that is gone has carried some of it

  // One put or get that has not ended.
  struct Op {
    RunCursor start, cursor;
    Completion* done = nullptr;
    StreamPoint* after = nullptr;
    std::uint64_t number = 0;  // order of posting
    std::size_t bytes = 0;
    std::size_t left = 0;  // to be posted
    std::size_t moved = 0;
    unsigned under_way = 0;   // work requests, and what is to be posted again
    std::uint32_t lanes = 0;  // a bit for each that has carried some of it
    int numa_node = -1;       // of a device here
    bool is_put = true;
    bool begun = false;
    bool on_device = false;  // bytes land in memory of a device
    bool settled = false;
    bool over_again = false;  // from the start, once nothing is under way: a lane was lost before it was settled there
    Status failure;
    Bytes signal;  // that has not been posted
  };
  using Ops = std::map<std::uint64_t, std::unique_ptr<Op>>;  // by number
  using OpPlace = Ops::iterator;
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  Link(std::shared_ptr<Shared> shared, EndpointSink& sink) noexcept : shared_(std::move(shared)), sink_(&sink) {}

  // link.cc
  Status open(const std::vector<Nic*>& nics);
  Status register_messages();
  Status not_ready() const;
  void fail(const Status& reason);
  void end_all(const Status& reason);
  void end_flushes();

  // link_send.cc
  Status post(const TransferOp& op, Completion* done, bool is_put);
  Status check_reach(const TransferOp& op, bool is_put) const;
  Op& add_op();
  [[nodiscard]] bool nothing_waits() const noexcept;
  [[nodiscard]] bool credit_due() const noexcept { return consumed_ - consumed_told_ >= credits / 2; }
  void fill(Lane& lane, Batch& batch);
  void fill_messages(Lane& lane, Batch& batch);
  void fill_data(Lane& lane, Batch& batch);
  void fill_op(Lane& lane, Batch& batch, Op& op);
  [[nodiscard]] bool takes(const Lane& lane, const Op& op) const;
  [[nodiscard]] bool may_follow(const Lane& lane, const Op& op) const noexcept;
  std::optional<std::uint32_t> immediate_of(Lane& lane, Batch& batch, const Op& op);
  void add(Lane& lane, Batch& batch, const Record& record);
  void add_message(Lane& lane, Batch& batch, const MessageHead& head, std::uint64_t op, ByteSpan first, ByteSpan second);
  void add_announcements(Lane& lane, Batch& batch);
  bool submit(Lane& lane, Batch& batch);
  [[nodiscard]] bool room_for_signal(const Lane& lane) const noexcept;
  [[nodiscard]] std::byte* send_slot(unsigned slot) const noexcept { return memory_.get() + (receive_slots_ + slot) * slot_bytes; }

  // link_complete.cc
  void on_sent(Lane& lane, const ibv_wc& completion);
  void retire(const Record& record);
  void step(OpPlace place);
  void settle(OpPlace place);
  void broke(Lane& lane, const ibv_wc& completion);
  void condemn(std::uint64_t number, const Status& reason);
  void restart_outbound(Lane& lane);
  void finish(OpPlace place);
  void end_condemned();

  // link_receive.cc
  void on_received(Lane& lane, const ibv_wc& completion);
  bool take_message(unsigned slot, std::size_t bytes);
  bool take_immediate(std::uint32_t immediate);
  Status post_receive(Lane& lane, unsigned slot);
  Status post_receives(Lane& lane, unsigned count);
  [[nodiscard]] std::byte* receive_slot(unsigned slot) const noexcept { return memory_.get() + slot * slot_bytes; }

  // link_lanes.cc
  [[nodiscard]] Lane* message_lane() const noexcept;
  [[nodiscard]] std::size_t live_lanes() const noexcept;
  [[nodiscard]] Lane* first_live() const noexcept;
  void lose(Lane& lane, const Status& reason);
  void drained(Lane& lane);
  void decide(Lane& lane);
  void doubt(const Record& one);
  Status ready_for_messages();

  // link_return.cc
  void plan_return(const Lane& lane);
  void offer_lanes();
  Status renew(std::size_t index, std::uint16_t life, std::uint32_t rank);
  bool on_offer(const MessageHead& head, ByteSpan body);
  Status introduce(Lane& lane, const LaneAddress& peer);
  void join(Lane& lane);
  void announce(const Lane& lane);

  // link_watch.cc
  void watch();
  void look();

  std::shared_ptr<Shared> shared_;
  EndpointSink* sink_;
  std::uint32_t number_ = 0;
  bool ready_ = false;
  bool closed_ = false;
  bool advancing_ = false;
  Status failure_;
  std::uint64_t peer_sink_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool leads_ = false;  // it is this side that makes lanes anew
  std::uint32_t last_rank_ = 0;
  unsigned notes_ = 0;  // receives of a lane that are for no signals
  Engine::TimerId return_timer_ = 0;
  Engine::TimerId watch_timer_ = 0;

  struct FreePages {
    void operator()(std::byte* pages) const noexcept;
  };
  std::unique_ptr<std::byte, FreePages> memory_;  // slots that receive, then slots that send
  std::unique_ptr<std::byte, FreePages> sink_page_;
  struct Registered {
    const Nic* nic;
    ibv_mr* handle;
  };
  std::vector<Registered> handles_;
  unsigned receive_slots_ = 0;
  unsigned reserved_slots_ = 0;  // of those that send, for what is no signal
  std::vector<unsigned> free_sends_, free_receives_;

  std::deque<Record> redo_;    // data of lanes that are gone
  std::deque<Record> resend_;  // signals of these, in their slots
  // Operations that failed for an access error. A dead process's memory is taken from it before its queue pairs are: only once
  // something is answered again is it known that the peer lives and has closed the region.
  std::vector<std::uint64_t> condemned_;
  std::uint32_t signals_sent_ = 0;
  std::uint32_t signals_taken_ = 0;  // of these, by the peer, as it told
  std::deque<Bytes> waiting_signals_;
  SignalHeads heads_told_, heads_heard_;
  RecentHeads heads_seen_;  // that have not been told
  std::uint32_t consumed_ = 0;
  std::uint32_t consumed_told_ = 0;

  Ops ops_;
  std::vector<Ops::node_type> spare_ops_;  // of operations that have ended, for the next ones
  std::deque<std::uint64_t> turns_;        // operations with something left to post
  std::vector<std::uint64_t> held_;        // that wait for a stream
  std::uint64_t last_number_ = 0;
  std::deque<Flush> flushes_;
};

}  // namespace hmc::verbs
