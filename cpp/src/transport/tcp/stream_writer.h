// StreamWriter: what goes out on the streams of an endpoint: active messages, acknowledgements, slices, replies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "progress/engine.h"
#include "transport/tcp/acknowledgements.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/turns.h"

namespace hmc::tcp {

class TcpEndpoint;

// Part of `endpoint`, which it notifies of a lost connection. Engine lock held.
class StreamWriter {
 public:
  StreamWriter(TcpEndpoint& endpoint, Engine& engine, const Streams& streams, Turns& turns, const kit::OperationTable& operations)
      : endpoint_(endpoint), engine_(engine), streams_(streams), turns_(turns), operations_(operations) {}

  [[nodiscard]] bool has_output() const noexcept;
  // Takes what it writes off `budget`. True if anything moved.
  bool write(std::size_t& budget);
  // Queues an active message, and writes it if nothing is queued before it. False: no room.
  [[nodiscard]] bool signal(ByteSpan head, ByteSpan body);
  // Queues the answer to a put of the peer that is all here. False: the peer does not read its answers.
  [[nodiscard]] bool answer(std::uint64_t put, Refusal refusal);
  // Has the engine report room on full sockets. False: there is something to write already.
  bool arm();
  void has_room(Stream& stream);
  void stop() noexcept { acknowledgements_.clear(); }

 private:
  std::size_t write_burst(Stream& stream);  // bytes written of it
  bool next_burst(Stream& stream);
  void burst_sent(Stream& stream);
  [[nodiscard]] bool has_output(const Stream& stream) const noexcept;

  TcpEndpoint& endpoint_;
  Engine& engine_;
  const Streams& streams_;
  Turns& turns_;
  const kit::OperationTable& operations_;
  Acknowledgements acknowledgements_;
  std::size_t next_stream_ = 0;
};

}  // namespace hmc::tcp
