// Loop: the working half of a local endpoint. The transport polls it and keeps it alive while a callback that it made destroys the
// endpoint.
#pragma once

#include <deque>
#include <memory>

#include "transport/copy.h"
#include "transport/device_copies.h"
#include "transport/local/loop_ring.h"
#include "transport/local/region.h"
#include "transport/run_cursor.h"
#include "transport/transport.h"

namespace hmc::local {

inline constexpr std::size_t max_signal = 16 << 10;
inline constexpr std::size_t eager_limit = 8 << 10;

// All calls with the engine lock held.
class Loop {
 public:
  Loop(std::shared_ptr<Shared> shared, EndpointSink& sink) noexcept : shared_(std::move(shared)), sink_(&sink) {}

  Status connect();
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body);
  Status flush(Completion* done);
  Status cancel(Completion* done);
  void close();

  [[nodiscard]] const Shared& shared() const noexcept { return *shared_; }
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  [[nodiscard]] bool busy() const noexcept { return ready_ && (!ring_.empty() || !waiting_signals_.empty() || !ops_.empty()); }
  bool poll(std::size_t& budget);

 private:
  struct Op {
    RunCursor cursor;
    Completion* done = nullptr;
    std::uint64_t number = 0;  // order of posting
    std::size_t bytes = 0;
    std::size_t moved = 0;
    CopyKind kind = CopyKind::cached;
    bool is_put = true;
    const StreamPoint* after = nullptr;
    std::unique_ptr<DeviceCopies> copies;  // once a runtime copies something of it
    DeviceRuntime* runtime = nullptr;      // the last that did
    Status failure;
    Bytes signal;
  };
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  Status not_ready() const;
  Status post(const TransferOp& op, Completion* done, bool is_put);
  std::size_t move(Op& op, std::size_t budget);
  std::size_t move_device(Op& op, const RegionView& remote);
  static bool ended(Op& op);
  void send_attached(ByteSpan signal);
  bool deliver(std::size_t& budget);
  bool advance(std::size_t& budget);
  void end_flushes();

  std::shared_ptr<Shared> shared_;
  EndpointSink* sink_;
  bool ready_ = false;
  bool closed_ = false;
  LoopRing ring_;
  std::deque<Bytes> waiting_signals_;    // attached ones that met a full ring
  std::deque<std::unique_ptr<Op>> ops_;  // the next to have its turn first
  std::deque<Flush> flushes_;
  std::uint64_t last_number_ = 0;
};

}  // namespace hmc::local
