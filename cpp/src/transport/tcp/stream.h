// Stream: one socket of an endpoint. It writes bursts (whole frames). The StreamReader interprets what it reads.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "progress/engine.h"
#include "transport/kit/served_regions.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/receive_buffer.h"

namespace hmc::tcp {

class TcpEndpoint;

// Frames on their way into the socket: headers, memory that is sent from where it lies, headers.
struct Burst {
  Bytes head;
  std::vector<iovec> pieces;
  Bytes tail;
  std::size_t payload = 0;               // bytes of the pieces
  std::size_t sent = 0;                  // of all
  std::uint64_t op = 0;                  // put whose slice this is; 0: none
  std::shared_ptr<ServedRegion> region;  // that the pieces lie in, for a peer's get
  Bytes copy;                            // owns what the pieces point to, once that region is gone

  [[nodiscard]] std::size_t size() const noexcept { return head.size() + payload + tail.size(); }
  [[nodiscard]] bool done() const noexcept { return sent == size(); }
  void clear() noexcept;  // keeps capacities
};

// A get of ours that the peer has been asked for on this stream: where its bytes go.
struct Request {
  std::uint64_t id = 0;
  std::uint64_t op = 0;  // 0: cancelled, the bytes are dropped
  std::vector<iovec> pieces;
  std::uint32_t length = 0;
};

// The gets that the peer has been asked for on one stream, oldest first.
struct Requests {
  std::deque<Request> queue;
  bool answered = false;  // the bytes of the oldest are here; its end is not
};

// A peer's get, to be answered on this stream.
struct Serving {
  std::uint64_t id = 0;
  std::uint64_t region = 0;
  std::vector<Extent> extents;
  std::uint32_t length = 0;
};

// The peer's gets on one stream, oldest first.
struct Servings {
  std::deque<Serving> queue;
  bool first = true;  // the next slice is one of these, not one of this side's puts
};

// The frame whose payload is being read.
struct Payload {
  Header header;
  std::vector<Extent> extents;  // put
  std::size_t piece = 0;        // index into the extents, or the pieces of the request
  std::size_t offset = 0;       // within that one
  std::size_t left = 0;         // bytes of the frame to come; 0: no payload is being read
};

class Stream final : public FdHandler, private ServedCopies {
 public:
  Stream(TcpEndpoint& endpoint, UniqueFd socket) noexcept : fd(std::move(socket)), endpoint_(&endpoint) {}
  void on_ready(std::uint32_t events) override;

  // Writes what it can of the burst. `failed`: errno says why.
  Io send_burst();
  // The burst's pieces lie in `region`; once that ends, in a copy of them.
  void reply_from(std::shared_ptr<ServedRegion> region);
  void end_burst();
  void stop(Engine& engine);

  UniqueFd fd;
  bool shut = false;     // takes nothing to write any more
  bool dead = false;     // nor is anything left to read
  bool blocked = false;  // the socket took no more
  bool writing = false;  // in StreamWriter::write_burst, further up the call chain
  bool reading = false;
  enum class Watch : std::uint8_t { none, input, input_and_room };
  Watch watch = Watch::none;  // what the engine reports
  int heat = 0;               // polls for which reading without being asked to may be worth it
  Bytes small;                // frames to go out with the next burst
  Burst burst;
  Requests requests;
  Servings servings;
  ReceiveBuffer received;
  Payload payload;

 private:
  void see_out() override;

  TcpEndpoint* endpoint_;
};

using Streams = std::vector<std::unique_ptr<Stream>>;

}  // namespace hmc::tcp
