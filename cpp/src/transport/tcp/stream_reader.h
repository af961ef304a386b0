// StreamReader: what comes in on the streams of an endpoint. Nothing a peer sends is believed before it was checked; payload goes
// straight to where it belongs, and only while that is still there.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/tcp/incoming_puts.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/turns.h"

namespace hmc::tcp {

class StreamWriter;
class TcpEndpoint;

// Part of `endpoint`, which it notifies of active messages, ended operations and failures. Engine lock held.
class StreamReader {
 public:
  StreamReader(TcpEndpoint& endpoint, std::shared_ptr<Shared> shared, const Streams& streams, StreamWriter& writer, Turns& turns,
               const kit::OperationTable& operations)
      : endpoint_(endpoint),
        shared_(std::move(shared)),
        streams_(streams),
        writer_(writer),
        turns_(turns),
        operations_(operations),
        puts_(shared_->regions) {}

  // Something moved lately: polls read without being asked to.
  [[nodiscard]] bool warm() const noexcept { return heat_ > 0; }
  void warm_up(Stream& stream) noexcept;
  // Takes what it reads off `budget`. True if anything moved.
  bool poll(std::size_t& budget);
  bool read(Stream& stream, std::size_t& budget);
  void stop() noexcept { puts_.clear(); }

 private:
  void lost(Stream& stream, const Status& reason);
  void broken(Stream& stream, const char* what);
  bool parse(Stream& stream);
  bool on_frame(Stream& stream, const Header& header, ByteSpan inline_part);
  bool begin_payload(Stream& stream, const Header& header, ByteSpan extents);
  void targets(Stream& stream);
  void payload_arrived(Stream& stream, std::size_t bytes);
  void payload_ended(Stream& stream);
  bool on_put_end(const Header& header, ByteSpan signal);
  bool put_arrived(const IncomingPuts::Arrived& put);
  bool on_ack(std::uint64_t first, std::uint64_t count);
  bool on_refuse(std::uint64_t number, Refusal refusal);
  bool on_get(Stream& stream, const Header& header, ByteSpan extents);
  bool on_get_end(Stream& stream, const Header& header);

  TcpEndpoint& endpoint_;
  const std::shared_ptr<Shared> shared_;
  const Streams& streams_;
  StreamWriter& writer_;
  Turns& turns_;
  const kit::OperationTable& operations_;
  IncomingPuts puts_;
  int heat_ = 0;
  std::vector<iovec> vectors_;  // of the current read
};

}  // namespace hmc::tcp
