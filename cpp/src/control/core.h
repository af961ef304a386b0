// ChannelCore: an established channel. The Channel that users hold only borrows it, so that the sink may destroy the Channel from
// inside any callback.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "control/handshake.h"

namespace hmc::control {

class ChannelCore;

// When a peer on another host was last heard, and last written to. Anything that arrives counts as a sign of life, anything that is
// sent spares a ping.
class Heartbeat {
 public:
  using Clock = Deadline::Clock;
  Heartbeat(double own_seconds, double peer_seconds);
  void received() noexcept { last_received_ = Clock::now(); }
  void sent() noexcept { last_sent_ = Clock::now(); }
  [[nodiscard]] Clock::duration limit() const noexcept { return limit_; }  // of silence
  [[nodiscard]] Clock::duration silence() const noexcept { return Clock::now() - last_received_; }
  [[nodiscard]] bool expired() const noexcept { return silence() >= limit_; }
  [[nodiscard]] bool ping_due() const noexcept { return Clock::now() - last_sent_ >= ping_interval_; }
  [[nodiscard]] Deadline next() const noexcept {
    return Deadline::at(std::min(last_sent_ + ping_interval_, last_received_ + limit_));
  }

 private:
  Clock::duration limit_;
  Clock::duration ping_interval_;
  Clock::time_point last_received_ = Clock::now();
  Clock::time_point last_sent_ = last_received_;
};

// Channels that were destroyed while their goodbye was on its way; they go when the peer has it, or with the plane.
using Lingering = std::vector<std::shared_ptr<ChannelCore>>;

class ChannelCore final : public FdHandler, public std::enable_shared_from_this<ChannelCore> {
 public:
  ChannelCore(std::shared_ptr<Engine> engine, Established established, double heartbeat_seconds,
              std::weak_ptr<Lingering> lingering);
  ~ChannelCore();

  void set_sink(ChannelSink& sink);
  Status send(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds);
  void close();
  void await_end(bool goodbye);
  void detach();  // the Channel goes: no more callbacks, the socket closes (after close(): once the goodbye is through)
  void plane_gone();
  [[nodiscard]] const PeerIdentity& identity() const noexcept { return identity_; }

  void on_ready(std::uint32_t events) override;

 private:
  enum class State : std::uint8_t {
    open,
    broken,   // the socket ended without a goodbye: waiting a moment for the kernel's word on why
    closing,  // close() was called: goodbye is on its way, then the peer's end of the connection is awaited
    over,
  };
  enum class Writing : std::uint8_t { open, failed, shut };
  // The peer's process as an event of its own: a child that it forked may hold the socket open after its death.
  struct ProcessWatch final : FdHandler {
    ProcessWatch(ChannelCore& owner, PeerProcess peer) : core(owner), process(std::move(peer)) {}
    void on_ready(std::uint32_t) override { core.process_died(); }
    Status start();
    void stop();
    [[nodiscard]] bool known() const noexcept { return static_cast<bool>(process.pidfd); }

    ChannelCore& core;
    PeerProcess process;
    bool watched = false;
  };

  void start();
  void process_died();
  void receive(bool until_blocked);
  void deliver();
  void handle(Stream::Frame& frame);
  void after_output(Stream::Output outcome);
  void write_failed();
  void socket_ended(const Status& reason);
  void give_up();
  void finish(const Status& reason);
  void release();
  void watch();
  void schedule_heartbeat();
  void check_heartbeat();
  void set_timer(Deadline deadline, void (ChannelCore::*action)());
  [[nodiscard]] std::string who() const;
  [[nodiscard]] Status closed_here() const;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Stream> stream_;  // shared with deliver(): a payload outlives the channel's end inside its callback
  PeerIdentity identity_;
  ProcessWatch process_;
  ChannelSink* sink_ = nullptr;
  State state_ = State::open;
  Writing writing_ = Writing::open;
  std::uint32_t watched_ = 0;                   // events of the socket; 0: not watched
  Status end_;                                  // why the channel is over
  std::optional<Heartbeat> heartbeat_;          // another host only
  std::optional<Engine::TimerId> timer_;        // heartbeat, or the time limit of broken and closing
  std::size_t queued_before_ = 0;               // bytes, when the time limit of closing was set
  std::optional<Engine::TimerId> retry_timer_;  // set: the kernel is out of buffers, writing waits
  std::weak_ptr<Lingering> lingering_;
};

// The public face.
std::unique_ptr<Channel> make_channel(std::shared_ptr<Engine> engine, Established established, double heartbeat_seconds,
                                      std::weak_ptr<Lingering> lingering);

}  // namespace hmc::control
