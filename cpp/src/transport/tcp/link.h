// Link: the working half of a tcp endpoint: `n` streams to one peer, the operations under way on them, and how they come to be.
//
// A put leaves in slices, each on whichever stream has room; the peer counts the bytes of each operation, and acknowledges it (and
// passes on the attached signal) once all are in place. A get is asked for slice by slice; the reply comes on the stream of the
// request. Signals keep to stream 0.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/run_cursor.h"
#include "transport/tcp/connect.h"
#include "transport/tcp/region.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/stream.h"
#include "transport/transport.h"

namespace hmc::tcp {

// All calls with the engine lock held.
class Link : public std::enable_shared_from_this<Link> {
 public:
  static std::shared_ptr<Link> create(const std::shared_ptr<Shared>& shared, bool same_host, EndpointSink& sink);
  ~Link();

  // ---- of Endpoint ----
  Result<Blob> address();
  Status connect(const Blob& peer_address, Completion* done);
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body);
  Status flush(Completion* done);
  Status cancel(Completion* done);
  // Ends pending operations with `closed`. The sink is not called any more.
  void close();

  // ---- of the transport ----
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  [[nodiscard]] bool active() const noexcept { return ready_ && (heat_ > 0 || has_output()); }
  // Takes what it moves off `budget`. True if anything moved.
  bool poll(std::size_t& budget);
  // Sees that the descriptors report whatever poll() would do; false: there is something to do already.
  bool arm();
  [[nodiscard]] bool busy() const noexcept { return ready_ && has_output(); }
  void region_gone(std::uint64_t id);

  // ---- of streams and connections under way ----
  void on_ready(Stream& stream, std::uint32_t events);
  // A connection that the peer dialled and that showed stream `index`'s ticket. False: not wanted.
  [[nodiscard]] bool wants(const Hello& hello) const noexcept;
  void accepted(std::size_t index, UniqueFd socket);
  // A connection that this side dialled: the peer said yes, or every address failed.
  void dialled(std::size_t index, Result<UniqueFd> socket);
  [[nodiscard]] const std::shared_ptr<Shared>& shared() const noexcept { return shared_; }
  [[nodiscard]] std::size_t stream_count() const noexcept { return count_; }

 private:
  // Puts whose parts are under way at once. A peer keeps a record of each that it has part of, and takes more than max_incoming for
  // an attack: a stream that lags behind the others must not make an honest sender look like one.
  static constexpr std::size_t max_split = 512;
  static constexpr std::size_t max_incoming = 1024;

  // One put or get that has not ended.
  struct Op {
    RunCursor cursor;
    Completion* done = nullptr;  // null once told (a put at level local)
    std::uint64_t number = 0;    // order of posting; names a put to the peer
    std::size_t bytes = 0;
    std::size_t moved = 0;   // put: handed to sockets; get: in place
    unsigned under_way = 0;  // put: slices in sockets; get: requests
    Complete level = Complete::remote;
    bool is_put = true;
    bool begun = false;
    bool split = false;     // put: more than one slice, so its parts may arrive far apart
    bool end_sent = false;  // put: everything including its end has been given to a stream
    Status failure;
    Bytes signal;
  };
  // A peer's put, until all of it is here.
  struct Incoming {
    std::uint64_t received = 0;
    std::uint64_t total = 0;  // known when ended
    bool ended = false;
    Refusal refusal = Refusal::none;
    Bytes signal;
  };
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  Link(std::shared_ptr<Shared> shared, bool same_host, EndpointSink& sink)
      : shared_(std::move(shared)), sink_(&sink), same_host_(same_host) {}

  // link_connect.cc
  void start_dialling();
  void give_up_dialling();
  void add_stream(std::size_t index, UniqueFd socket);
  void maybe_ready();
  void connect_failed(const Status& reason);

  // link.cc
  Status not_ready() const;
  void fail(const Status& reason);
  void broken(const std::string& what);
  void lost(Stream& stream, const Status& reason);
  void end_all(const Status& reason);
  [[nodiscard]] bool has_output() const noexcept;
  void warm(Stream& stream) noexcept;
  std::unique_ptr<Op> take(std::uint64_t number);
  void finish(std::unique_ptr<Op> op);
  void end_flushes();

  // link_send.cc
  Status post(const TransferOp& op, Completion* done, bool is_put);
  bool write_all(std::size_t& budget);
  bool write(Stream& stream, std::size_t& budget);
  bool next_burst(Stream& stream);
  void append_acks(Bytes& out);
  bool build_slice(Stream& stream);
  bool build_put(Stream& stream, Op& op);
  bool build_request(Stream& stream, Op& op);
  void build_reply(Stream& stream);
  void burst_sent(Stream& stream);
  [[nodiscard]] bool can_build(const Stream& stream) const noexcept;
  [[nodiscard]] bool may_send(const Op& put) const noexcept { return put.begun || split_ < max_split; }

  // link_receive.cc
  bool read(Stream& stream, std::size_t& budget);
  bool parse(Stream& stream);
  bool on_frame(Stream& stream, const Header& header, ByteSpan inline_part);
  bool begin_payload(Stream& stream, const Header& header, ByteSpan extents);
  void targets(Stream& stream, std::vector<iovec>& out);
  void payload_arrived(Stream& stream, std::size_t bytes);
  void payload_ended(Stream& stream);
  bool on_put_end(const Header& header, ByteSpan signal);
  bool put_maybe_done(std::uint64_t number);
  bool on_ack(std::uint64_t first, std::uint64_t count);
  bool on_refuse(std::uint64_t number, Refusal refusal);
  bool on_get(Stream& stream, const Header& header, ByteSpan extents);
  bool on_get_end(Stream& stream, const Header& header);
  TcpLocalRegion* find(std::uint64_t region) const noexcept;

  std::shared_ptr<Shared> shared_;
  EndpointSink* sink_;
  bool same_host_;
  bool ready_ = false;
  bool closed_ = false;
  bool lost_ = false;            // a stream is dead; the rest follows
  bool blocked_signal_ = false;  // a signal() met a full queue
  Status failure_;

  // Until ready.
  std::uint64_t id_ = 0;  // names this side to the peer
  std::uint64_t order_[2] = {0, 0};
  std::vector<Ticket> tickets_;
  std::size_t count_ = 0;  // streams of the link; 0: not known yet
  Address peer_;
  Completion* connected_ = nullptr;
  bool dialling_ = false;
  std::vector<std::unique_ptr<Dial>> dials_;
  Engine::TimerId timer_ = 0;
  Engine::TimerId deadline_ = 0;

  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::uint64_t, std::unique_ptr<Op>> ops_;  // by number: in order of posting
  std::deque<std::uint64_t> turns_;                   // operations with something left to send or to ask for
  std::uint64_t last_number_ = 0;
  std::uint64_t last_request_ = 0;
  std::size_t split_ = 0;  // puts of several slices that are begun and have not ended
  std::unordered_map<std::uint64_t, Incoming> incoming_;
  std::uint64_t ack_first_ = 0;  // of puts that are in place and not acknowledged yet
  std::uint64_t ack_count_ = 0;
  std::size_t next_stream_ = 0;
  int heat_ = 0;
  std::deque<Flush> flushes_;
  Status late_failure_;         // of a put after it was told done at level local: the next flush reports it
  std::vector<iovec> vectors_;  // of the read under way
};

}  // namespace hmc::tcp
