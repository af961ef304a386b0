#include "control/core.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"

namespace hmc::control {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr std::size_t max_queued = 64U << 20;
constexpr std::size_t max_received_per_turn = 1U << 20;
constexpr std::size_t short_read = 4096;
constexpr std::size_t max_received_at_death = 64U << 20;  // somebody else may go on writing into a dead process's socket
constexpr auto death_grace = milliseconds(50);            // sockets close a little before the process counts as dead
constexpr auto retry_delay = milliseconds(5);
// For a peer to end its side, and before that to take so much of what is queued, again and again.
constexpr auto close_limit = std::chrono::seconds(2);
constexpr std::size_t least_taken = 1U << 20;

Deadline::Clock::duration seconds(double value) { return duration_cast<Deadline::Clock::duration>(duration<double>(value)); }

class BorrowedChannel final : public Channel {
 public:
  explicit BorrowedChannel(std::shared_ptr<ChannelCore> core) : core_(std::move(core)) {}
  ~BorrowedChannel() override { core_->detach(); }
  void set_sink(ChannelSink& sink) override { core_->set_sink(sink); }
  Status send(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) override {
    return core_->send(type, payload, std::move(fds));
  }
  [[nodiscard]] const PeerIdentity& identity() const noexcept override { return core_->identity(); }
  void close() override { core_->close(); }
  void await_end(bool goodbye) override { core_->await_end(goodbye); }

 private:
  std::shared_ptr<ChannelCore> core_;
};

}  // namespace

std::unique_ptr<Channel> make_channel(std::shared_ptr<Engine> engine, Established established, double heartbeat_seconds,
                                      std::weak_ptr<Lingering> lingering) {
  return std::make_unique<BorrowedChannel>(
      std::make_shared<ChannelCore>(std::move(engine), std::move(established), heartbeat_seconds, std::move(lingering)));
}

Heartbeat::Heartbeat(double own_seconds, double peer_seconds)
    : limit_(seconds(own_seconds)), ping_interval_(seconds(std::min(own_seconds, peer_seconds) / 3)) {}

Status ChannelCore::ProcessWatch::start() {
  if (watched || !known()) return {};
  HMC_TRY(core.engine_->watch(process.pidfd.get(), EPOLLIN, *this));
  watched = true;
  return {};
}

void ChannelCore::ProcessWatch::stop() {
  if (std::exchange(watched, false)) core.engine_->unwatch(process.pidfd.get());
  process.pidfd.reset();
}

ChannelCore::ChannelCore(std::shared_ptr<Engine> engine, Established established, double heartbeat_seconds,
                         std::weak_ptr<Lingering> lingering)
    : engine_(std::move(engine)),
      stream_(std::move(established.stream)),
      identity_(std::move(established.identity)),
      process_(*this, std::move(established.process)),
      lingering_(std::move(lingering)) {
  if (identity_.same_host) return;
  heartbeat_.emplace(heartbeat_seconds, established.peer_heartbeat_seconds);
  // What we send and nobody acknowledges is the other half of the heartbeat.
  const auto limit = static_cast<unsigned>(duration_cast<milliseconds>(heartbeat_->limit()).count());
  setsockopt(stream_->fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

ChannelCore::~ChannelCore() { release(); }

void ChannelCore::set_sink(ChannelSink& sink) {
  sink_ = &sink;
  const auto self = shared_from_this();
  engine_->defer([self] { self->start(); });
}

void ChannelCore::start() {
  if (sink_ == nullptr) return;
  // Ended before there was anybody to tell.
  if (state_ == State::over) return std::exchange(sink_, nullptr)->on_closed(end_);
  if (const Status watched = process_.start(); !watched.ok()) return finish(watched);
  deliver();
  if (state_ == State::over) return;
  if (writing_ == Writing::failed) return write_failed();
  watch();
  if (state_ == State::open) schedule_heartbeat();
}

std::string ChannelCore::who() const {
  return identity_.name.empty() ? identity_.address : identity_.name + " at " + identity_.address;
}

// ---- sending ----

Status ChannelCore::send(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (type < first_user_type) return Status(Code::invalid_argument, "control message types below 100 are control's own");
  if (payload.size() > max_control_payload) {
    return Status(Code::invalid_argument, "a control message of " + std::to_string(payload.size()) + " bytes; the limit is " +
                                              std::to_string(max_control_payload));
  }
  if (fds.size() > max_control_fds) {
    return Status(Code::invalid_argument, "more than " + std::to_string(max_control_fds) + " descriptors in one control message");
  }
  if (state_ == State::over) return end_;
  if (state_ == State::closing) return closed_here();
  if (state_ == State::broken || writing_ == Writing::failed) return {};  // discarded; on_closed() reports the reason
  if (!fds.empty() && !stream_->passes_fds()) {
    return Status(Code::unsupported, "descriptors cannot be passed to " + who() + ": it is not known to run on this host");
  }
  if (stream_->queued() + payload.size() + frame_header_bytes > max_queued) {
    return Status(Code::would_block, "64 MiB of control messages wait for " + who());
  }
  if (heartbeat_) heartbeat_->sent();
  after_output(stream_->send_frame(type, payload, std::move(fds)));
  return {};
}

void ChannelCore::after_output(Stream::Output outcome) {
  switch (outcome) {
    case Stream::Output::done:
      if (state_ == State::closing && writing_ == Writing::open) {
        writing_ = Writing::shut;
        stream_->shutdown_write();
      }
      break;
    case Stream::Output::blocked:
      break;
    case Stream::Output::later:
      if (retry_timer_) break;
      retry_timer_ = engine_->at(Deadline::after(retry_delay), [this] {
        retry_timer_.reset();
        after_output(stream_->flush());
      });
      break;
    case Stream::Output::failed: {
      if (std::exchange(writing_, Writing::failed) == Writing::failed) break;
      const auto self = shared_from_this();
      engine_->defer([self] { self->write_failed(); });
      break;
    }
  }
  watch();
}

// Told from a turn of its own, after a last look: the peer's goodbye may be waiting to be read.
void ChannelCore::write_failed() {
  if (state_ == State::over || state_ == State::broken || (sink_ == nullptr && state_ == State::open)) return;
  receive(true);
  if (state_ == State::open || state_ == State::closing) socket_ended(stream_->status().with_context(who()));
}

void ChannelCore::watch() {
  std::uint32_t events = 0;
  if (state_ == State::closing || (state_ == State::open && sink_ != nullptr)) {
    events = EPOLLIN;
    if (stream_->queued() > 0 && writing_ != Writing::failed && !retry_timer_) events |= EPOLLOUT;
  }
  if (events == watched_) return;
  const int fd = stream_->fd();
  if (watched_ == 0) {
    if (const Status watched = engine_->watch(fd, events, *this); !watched.ok()) {
      const auto self = shared_from_this();
      engine_->defer([self, watched] { self->finish(watched); });
      return;
    }
  } else if (events == 0) {
    engine_->unwatch(fd);
  } else {
    engine_->modify(fd, events);
  }
  watched_ = events;
}

// ---- receiving ----

void ChannelCore::on_ready(std::uint32_t events) {
  const auto self = shared_from_this();
  if ((events & EPOLLOUT) != 0 && state_ != State::over) after_output(stream_->flush());
  if (state_ == State::over || (events & ~static_cast<std::uint32_t>(EPOLLOUT)) == 0) return;
  receive(false);
}

void ChannelCore::receive(bool until_blocked) {
  const auto self = shared_from_this();
  const std::size_t limit = until_blocked ? max_received_at_death : max_received_per_turn;
  for (std::size_t total = 0; total < limit;) {
    const std::size_t before = stream_->received();
    const Stream::Input outcome = stream_->read();
    if (outcome == Stream::Input::blocked) break;
    const std::size_t got = stream_->received() - before;
    if (got > 0 && heartbeat_) heartbeat_->received();
    deliver();
    if (state_ == State::over) return;
    if (outcome == Stream::Input::ended) {
      return socket_ended(Status(Code::peer_lost, who() + " closed the connection without a goodbye"));
    }
    if (outcome == Stream::Input::failed) return socket_ended(stream_->status().with_context(who()));
    // Level-triggered: a rest is announced again, so a short read is not followed by one that finds nothing.
    if (!until_blocked && got < short_read) break;
    total += got;
  }
  watch();
}

void ChannelCore::deliver() {
  const auto self = shared_from_this();
  const auto stream = stream_;
  Stream::Frame frame;
  while (state_ != State::over) {
    const auto taken = stream->next_frame(max_control_payload, frame);
    if (!taken.ok()) return finish(taken.status().with_context(who()));
    if (!*taken) return;
    handle(frame);
  }
}

void ChannelCore::handle(Stream::Frame& frame) {
  if (frame.header.type >= first_user_type) {
    if (frame.fds.size() != frame.header.fds) {
      log(LogLevel::warning,
          "descriptors from " + who() + " were lost: this process is at its descriptor limit; raise it (ulimit -n)");
    }
    // After close() too, for a sink that still takes what was sent before the goodbye.
    if (sink_ != nullptr) sink_->on_message(frame.header.type, frame.payload, std::move(frame.fds));
    return;
  }
  switch (static_cast<FrameType>(frame.header.type)) {
    case FrameType::ping:
      return;
    case FrameType::goodbye:
      return finish(Status(Code::closed, who() + " said goodbye"));
    case FrameType::identity:
    case FrameType::commit:
      break;
    case FrameType::refusal:
      return finish(decode_refusal(frame.payload).with_context("refused by " + who()));
  }
  finish(Status(Code::protocol, who() + " sent a message of unknown type " + std::to_string(frame.header.type)));
}

// ---- the end ----

void ChannelCore::process_died() {
  const auto self = shared_from_this();
  // What it said before it died comes first: perhaps a goodbye.
  if (state_ == State::open || state_ == State::closing) receive(true);
  if (state_ == State::over) return;
  finish(Status(Code::peer_lost, who() + " is gone: " + describe_death(process_.process)));
}

void ChannelCore::socket_ended(const Status& reason) {
  if (state_ == State::closing) return finish(closed_here());
  if (reason.code() != Code::peer_lost || !process_.known()) return finish(reason);
  if (is_dead(process_.process)) return finish(Status(Code::peer_lost, who() + " is gone: " + describe_death(process_.process)));
  state_ = State::broken;
  end_ = reason;
  watch();
  set_timer(Deadline::after(death_grace), &ChannelCore::give_up);
}

void ChannelCore::give_up() {
  const std::size_t share = std::min(queued_before_, least_taken);
  if (state_ == State::closing && share != 0 && stream_->queued() + share <= queued_before_) {
    queued_before_ = stream_->queued();
    return set_timer(Deadline::after(close_limit), &ChannelCore::give_up);
  }
  finish(state_ == State::broken ? Status(end_) : closed_here());
}

Status ChannelCore::closed_here() const { return Status(Code::closed, "the channel to " + who() + " was closed"); }

void ChannelCore::close() {
  if (state_ != State::open) return;  // broken: its end is about to be told
  state_ = State::closing;
  queued_before_ = stream_->queued();
  set_timer(Deadline::after(close_limit), &ChannelCore::give_up);
  after_output(stream_->send_frame(static_cast<MessageType>(FrameType::goodbye), {}));
}

void ChannelCore::await_end(bool goodbye) {
  if (state_ != State::open) return;
  state_ = State::closing;
  after_output(goodbye ? stream_->send_frame(static_cast<MessageType>(FrameType::goodbye), {}) : stream_->flush());
}

void ChannelCore::detach() {
  sink_ = nullptr;
  if (state_ == State::closing) {
    if (const auto keeper = lingering_.lock()) return keeper->push_back(shared_from_this());
  }
  plane_gone();
}

void ChannelCore::plane_gone() {
  sink_ = nullptr;
  finish(closed_here());
}

void ChannelCore::finish(const Status& reason) {
  if (state_ == State::over) return;
  const auto self = shared_from_this();
  end_ = reason;
  release();
  if (const auto keeper = lingering_.lock()) std::erase(*keeper, self);
  if (sink_ != nullptr) std::exchange(sink_, nullptr)->on_closed(end_);
}

void ChannelCore::release() {
  state_ = State::over;
  if (watched_ != 0) engine_->unwatch(stream_->fd());
  watched_ = 0;
  process_.stop();
  if (timer_) engine_->cancel_timer(*timer_);
  if (retry_timer_) engine_->cancel_timer(*retry_timer_);
  timer_.reset();
  retry_timer_.reset();
  stream_.reset();
}

// ---- life of a peer on another host ----

void ChannelCore::set_timer(Deadline deadline, void (ChannelCore::*action)()) {
  if (timer_) engine_->cancel_timer(*timer_);
  timer_ = engine_->at(deadline, [this, action] {
    timer_.reset();
    const auto self = shared_from_this();
    (this->*action)();
  });
}

void ChannelCore::schedule_heartbeat() {
  if (heartbeat_) set_timer(heartbeat_->next(), &ChannelCore::check_heartbeat);
}

void ChannelCore::check_heartbeat() {
  // This process may have been stopped or busy itself: what waits in the socket counts.
  if (heartbeat_->expired()) receive(true);
  if (state_ != State::open) return;
  if (heartbeat_->expired()) {
    const auto silent = duration_cast<milliseconds>(heartbeat_->silence()).count();
    return finish(
        Status(Code::peer_lost, who() + " is lost: nothing was heard from it for " + std::to_string(silent) + " ms (heartbeat)"));
  }
  if (heartbeat_->ping_due()) {
    heartbeat_->sent();
    // What is queued already says that we live, as soon as it gets through.
    if (stream_->queued() == 0) after_output(stream_->send_frame(static_cast<MessageType>(FrameType::ping), {}));
  }
  schedule_heartbeat();
}

}  // namespace hmc::control
