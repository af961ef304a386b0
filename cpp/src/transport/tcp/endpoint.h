// TcpEndpoint: `n` streams to one peer, and the operations in flight on them.
//
// A put leaves in slices, each on whichever stream has room; the peer counts the bytes of each operation, and acknowledges it (and
// passes on the attached signal) once all are in place. A get is asked for slice by slice; the reply comes on the stream of the
// request. Signals keep to stream 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/kit/endpoint_base.h"
#include "transport/tcp/acknowledgements.h"
#include "transport/tcp/incoming_puts.h"
#include "transport/tcp/meeting.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/turns.h"

namespace hmc::tcp {

// Engine lock held.
class TcpEndpoint final : public kit::EndpointBase {
 public:
  TcpEndpoint(std::shared_ptr<Shared> shared, bool same_host, EndpointSink& sink);

  // ---- of Endpoint ----
  Result<Blob> address() { return meeting_.address(); }
  Status connect(const Blob& peer_address, Completion* done);
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) { return ServedRemoteRegion::import(exported); }
  Status signal(ByteSpan head, ByteSpan body);
  // Sends the acknowledgements that the peer waits for, and reads those that are here already, before the rest ends with `closed`.
  void close();

  // ---- of the transport ----
  [[nodiscard]] bool active() const noexcept { return ready() && (heat_ > 0 || has_output()); }
  // Takes what it moves off `budget`. True if anything moved.
  bool poll(std::size_t& budget);
  // Sees that the descriptors report whatever poll() would do; false: there is something to do already.
  bool arm();
  [[nodiscard]] bool busy() const noexcept { return ready() && has_output(); }

  // ---- of its parts ----
  void on_ready(Stream& stream, std::uint32_t events);
  void met(Result<std::vector<UniqueFd>> sockets);
  [[nodiscard]] std::shared_ptr<TcpEndpoint> self() { return std::static_pointer_cast<TcpEndpoint>(weak_from_this().lock()); }

 private:
  // endpoint.cc
  Status check(const Run& run, bool is_put) const override;
  Status withdraw(kit::Operation& operation) override;
  void stop() override;
  void broken(const std::string& what);
  void lost(Stream& stream, const Status& reason);
  void fail_soon(const Status& reason);
  void drain();
  [[nodiscard]] bool has_output() const noexcept;
  void warm(Stream& stream) noexcept;
  void end(Op& op);

  // endpoint_send.cc
  Status start(kit::Operation& operation) override;
  bool send(ByteSpan signal, std::uint64_t put) override;
  bool write_all(std::size_t& budget);
  bool write(Stream& stream, std::size_t& budget);
  bool next_burst(Stream& stream);
  void burst_sent(Stream& stream);

  // endpoint_receive.cc
  bool read(Stream& stream, std::size_t& budget);
  bool parse(Stream& stream);
  bool on_frame(Stream& stream, const Header& header, ByteSpan inline_part);
  bool begin_payload(Stream& stream, const Header& header, ByteSpan extents);
  void targets(Stream& stream, std::vector<iovec>& out);
  void payload_arrived(Stream& stream, std::size_t bytes);
  void payload_ended(Stream& stream);
  bool on_put_end(const Header& header, ByteSpan signal);
  bool put_arrived(const IncomingPuts::Arrived& put);
  bool on_ack(std::uint64_t first, std::uint64_t count);
  bool on_refuse(std::uint64_t number, Refusal refusal);
  bool on_get(Stream& stream, const Header& header, ByteSpan extents);
  bool on_get_end(Stream& stream, const Header& header);

  const std::shared_ptr<Shared> shared_;
  bool lost_ = false;      // a stream is dead; the rest follows
  bool draining_ = false;  // to end: only what the peer has acknowledged is of interest
  Engine::TimerId grace_timer_ = 0;
  Meeting meeting_;
  std::vector<std::unique_ptr<Stream>> streams_;  // empty until ready
  Turns turns_;
  IncomingPuts puts_;
  Acknowledgements acknowledgements_;
  std::size_t next_stream_ = 0;
  int heat_ = 0;
  std::vector<iovec> vectors_;  // of the current read
};

}  // namespace hmc::tcp
