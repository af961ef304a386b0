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
#include "transport/tcp/meeting.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/stream_reader.h"
#include "transport/tcp/stream_writer.h"
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
  void receive_rest();
  // Also what the peer's host has not acknowledged: the kernel discards it where that host sends anything after the end here.
  [[nodiscard]] bool has_unsent() const;
  // Sends the acknowledgements that the peer waits for, and reads those that are here already, before the rest ends with `closed`.
  void close();

  // ---- of the transport ----
  [[nodiscard]] bool active() const noexcept { return ready() && (reader_.warm() || writer_.has_output()); }
  // Takes what it moves off `budget`. True if anything moved.
  bool poll(std::size_t& budget);
  // Sees that the descriptors report whatever poll() would do; false: there is something to do already.
  bool arm() { return !ready() || writer_.arm(); }
  [[nodiscard]] bool busy() const noexcept { return ready() && writer_.has_output(); }

  // ---- of its parts ----
  void on_ready(Stream& stream, std::uint32_t events);
  // The connections, or why there are none.
  void met(Result<std::vector<UniqueFd>> sockets);
  [[nodiscard]] std::shared_ptr<TcpEndpoint> self() { return std::static_pointer_cast<TcpEndpoint>(weak_from_this().lock()); }
  // Passes a received active message on, unless the endpoint is about to end.
  void deliver(ByteSpan signal) {
    if (!draining_) sink_->on_signal(signal);
  }
  // The operation has ended. A callback may close the endpoint.
  void end(Op& op);
  // A connection is lost: fails after a grace time.
  void fail_soon(const Status& reason);
  // The peer violated the protocol: fails now.
  void broken(const std::string& what);

 private:
  Status check(const Run& run, bool is_put) const override;
  Status start(kit::Operation& operation) override;
  bool send(ByteSpan signal, std::uint64_t put) override;
  Status withdraw(kit::Operation& operation) override;
  void stop() override;
  void drain();

  const std::shared_ptr<Shared> shared_;
  bool lost_ = false;      // a connection is lost; the endpoint fails soon
  bool draining_ = false;  // before the end: only what the peer has acknowledged is of interest
  Engine::TimerId grace_timer_ = 0;
  Meeting meeting_;
  Streams streams_;  // empty until ready
  Turns turns_;
  StreamWriter writer_;
  StreamReader reader_;
};

}  // namespace hmc::tcp
