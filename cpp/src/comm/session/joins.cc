// Two Contexts may connect to each other at the same time. The connection that the smaller ContextId made wins; the accepting side
// of the other one refuses it (`duplicate`) and its maker waits for the winner. A hello carries the number of the sender's
// PeerState, so that a peer which left and came back is told from one that connects twice.
#include "comm/session/joins.h"

#include <algorithm>
#include <functional>

#include "comm/context_impl.h"
#include "comm/waits.h"

namespace hmc {
namespace {

constexpr double hello_seconds = 10;
constexpr std::size_t max_pending_channels = 256;
constexpr std::size_t max_left_unaccepted = 64;

Status connect_too_late(std::string_view address) {
  return {Code::timeout, "connect to " + std::string(address) +
                             " did not finish in time; is a Context listening there, and does it make progress?"};
}

Status accept_too_late() { return {Code::timeout, "nobody connected to this Context in time"}; }

}  // namespace

// Shared by the caller and the control plane's callback.
struct ConnectAttempt {
  std::atomic<std::uint32_t> done{0};
  Status status;
  std::shared_ptr<PeerImpl> peer;
  std::function<void()> finished;  // called once done
  std::function<void()> give_up;   // ends what the control plane does for it
  bool abandoned = false;          // a channel that is made now is closed
  void abandon() {
    abandoned = true;
    if (const auto end = std::exchange(give_up, nullptr)) end();
  }
};

// An authenticated channel that came in and has not said hello yet. Engine lock held throughout.
class PendingChannel final : public ChannelSink {
 public:
  PendingChannel(ContextImpl& context, std::unique_ptr<Channel> channel);
  ~PendingChannel();
  PendingChannel(const PendingChannel&) = delete;
  PendingChannel& operator=(const PendingChannel&) = delete;

  void on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) override;
  void on_closed(const Status& reason) override;
  [[nodiscard]] Channel& channel() noexcept { return *channel_; }
  [[nodiscard]] std::unique_ptr<Channel> take() noexcept { return std::move(channel_); }

 private:
  ContextImpl& context_;
  std::unique_ptr<Channel> channel_;
  std::uint64_t timer_ = 0;
};

class AcceptWait final : public ResultWork<Peer> {
 public:
  using ResultWork::ResultWork;
  // A peer that nobody took returns to the queue.
  ~AcceptWait() override {
    const auto owner = peer_ ? context() : nullptr;
    if (owner) owner->toss([raw = owner.get(), peer = std::move(peer_)] { give_back(*raw, peer); });
  }
  void start(ContextImpl& context, Deadline deadline) {
    joins_ = &context.joins();
    place_ = joins_->waits_.insert(joins_->waits_.end(), this);
    waiting_ = true;
    joins_->serve();
    begin(deadline);
  }
  void deliver(std::shared_ptr<PeerImpl> peer) {
    leave();
    peer_ = std::move(peer);
    complete({});
  }

 private:
  static void give_back(ContextImpl& context, const std::shared_ptr<PeerImpl>& peer) {
    if (context.closing().begun() || peer->phase() == PeerPhase::lost) return;
    context.joins().queue_.push_front(peer);
    context.joins().serve();
    context.engine()->wake_waiters();
  }
  void leave() noexcept override {
    if (std::exchange(waiting_, false)) joins_->waits_.erase(place_);
  }
  bool put_back() override {
    if (!peer_) return false;
    const auto peer = std::exchange(peer_, nullptr);
    if (const auto owner = context()) give_back(*owner, peer);
    return true;
  }
  [[nodiscard]] Status too_late() const override { return accept_too_late(); }
  std::optional<Peer> take_locked() override {
    if (!peer_) return std::nullopt;
    return Peer(std::exchange(peer_, nullptr));
  }

  Joins* joins_ = nullptr;  // while it waits
  std::list<AcceptWait*>::iterator place_;
  bool waiting_ = false;
  std::shared_ptr<PeerImpl> peer_;
};

class ConnectWait final : public ResultWork<Peer> {
 public:
  ConnectWait(ContextImpl& context, std::string_view address) : ResultWork(context), address_(address) {}
  void start(ContextImpl& context, Deadline deadline) {
    const auto self = std::static_pointer_cast<ConnectWait>(shared_from_this());
    attempt_->finished = [self] { self->connected(); };
    context.joins().start_connect(attempt_, address_, deadline);
    begin(deadline);
  }

 private:
  void connected() { complete(attempt_->status.ok() ? Status() : attempt_->status.with_context("connect to " + address_)); }
  void leave() noexcept override {
    attempt_->finished = nullptr;
    attempt_->abandon();
  }
  [[nodiscard]] Status too_late() const override { return connect_too_late(address_); }
  std::optional<Peer> take_locked() override {
    if (!attempt_->peer) return std::nullopt;
    // Wanted by this side, so nobody needs to accept it.
    if (const auto owner = context()) std::erase(owner->joins().queue_, attempt_->peer);
    return Peer(std::exchange(attempt_->peer, nullptr));
  }

  const std::string address_;
  const std::shared_ptr<ConnectAttempt> attempt_ = std::make_shared<ConnectAttempt>();
};

Joins::Joins(ContextImpl& context) noexcept : context_(context) {}
Joins::~Joins() = default;

Status Joins::start() {
  const ContextOptions& options = context_.options();
  HMC_ASSIGN(listener_, Listener::create(context_.engine()));
  ControlOptions control;
  control.context_id = context_.id();
  control.name = options.name;
  control.key = options.key;
  control.insecure = options.insecure;
  control.heartbeat_seconds = options.heartbeat_seconds;
  HMC_ASSIGN(control_, ControlPlane::create(context_.engine(), *listener_, std::move(control)));
  control_->on_accept([this](std::unique_ptr<Channel> channel) { on_accept(std::move(channel)); });
  const bool unix_socket =
      std::ranges::any_of(options.listen, [](const std::string& address) { return address.starts_with("unix"); });
  if (!unix_socket) HMC_TRY(control_->listen("unix").status());
  for (const std::string& address : options.listen) {
    HMC_TRY(control_->listen(address).status().with_context("listen on " + address));
  }
  return {};
}

void Joins::end() {
  for (auto* waiter : waiters_) waiter->store(1);
  for (const auto& pending : pending_) pending->channel().close();  // the control plane sends the goodbye
  pending_.clear();
}

void Joins::stop() {
  queue_.clear();
  control_.reset();
  listener_.reset();
}

void Joins::add(std::shared_ptr<PeerImpl> peer) {
  queue_.push_back(std::move(peer));
  serve();
}

// Who came, said something and left properly can still be accepted and heard, if it was not long ago.
void Joins::peer_ended(const std::shared_ptr<PeerImpl>& peer) {
  if (peer->phase() == PeerPhase::lost || queue_.size() > max_left_unaccepted) std::erase(queue_, peer);
}

PendingChannel::PendingChannel(ContextImpl& context, std::unique_ptr<Channel> channel)
    : context_(context), channel_(std::move(channel)) {
  channel_->set_sink(*this);
  timer_ = context_.engine()->at(Deadline::after_seconds(hello_seconds), [this] {
    timer_ = 0;
    context_.joins().drop_pending(*this);
  });
}

PendingChannel::~PendingChannel() {
  if (timer_ != 0) context_.engine()->cancel_timer(timer_);
}

void PendingChannel::on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd>) {
  if (!channel_) return;
  if (type == wire::hello) {
    context_.joins().on_hello(*this, payload);
  } else {
    context_.joins().drop_pending(*this);
  }
}

void PendingChannel::on_closed(const Status&) { context_.joins().drop_pending(*this); }

void Joins::drop_pending(PendingChannel& pending) {
  const auto found = std::find_if(pending_.begin(), pending_.end(), [&](const auto& p) { return p.get() == &pending; });
  if (found == pending_.end()) return;
  context_.engine()->defer([gone = std::shared_ptr<PendingChannel>(std::move(*found))] {});
  pending_.erase(found);
}

void Joins::on_accept(std::unique_ptr<Channel> channel) {
  if (context_.closing().begun()) return channel->close();
  if (pending_.size() >= max_pending_channels) drop_pending(*pending_.front());
  pending_.push_back(std::make_unique<PendingChannel>(context_, std::move(channel)));
}

void Joins::on_hello(PendingChannel& pending, ByteSpan payload) {
  const auto hello = wire::decode_hello(payload);
  const ContextId id = pending.channel().identity().context_id;
  if (!hello || id == context_.id()) return drop_pending(pending);
  if (context_.closing().begun()) {
    pending.channel().close();
    return drop_pending(pending);
  }
  auto peer = context_.peers().find(id);
  if (peer && peer->link().channel() != nullptr && peer->handshake().greeted()) {
    if (peer->handshake().remote_session() == hello->session) {
      static_cast<void>(pending.channel().send(wire::duplicate, {}));
      pending.channel().close();
      return drop_pending(pending);
    }
    peer->closing().on_replaced();
    peer = nullptr;
  }
  if (peer && peer->link().channel() != nullptr) {
    if (context_.id() < id) {
      static_cast<void>(pending.channel().send(wire::duplicate, {}));
      pending.channel().close();
      return drop_pending(pending);
    }
    peer->handshake().drop_outgoing();
  }
  if (!peer) peer = context_.peers().make(id);
  auto channel = pending.take();
  drop_pending(pending);
  peer->handshake().attach_incoming(std::move(channel), *hello);
}

void Joins::start_connect(const std::shared_ptr<ConnectAttempt>& attempt, std::string_view address, Deadline deadline) {
  attempt->give_up = control_->connect(
      address, deadline, [this, attempt](Result<std::unique_ptr<Channel>> channel) { on_connected(attempt, std::move(channel)); });
}

Result<std::shared_ptr<PeerImpl>> Joins::connect(std::string_view address, Deadline deadline) {
  HMC_TRY(context_.usable());
  const auto attempt = std::make_shared<ConnectAttempt>();
  {
    const auto lock = context_.engine()->lock();
    HMC_TRY(context_.usable());
    start_connect(attempt, address, deadline);
  }
  const bool done = context_.engine()->drive_flag(deadline, attempt->done);
  const auto lock = context_.engine()->lock();
  if (!done && attempt->done.load() == 0) {
    attempt->abandon();
    HMC_TRY(context_.usable());
    return connect_too_late(address);
  }
  if (!attempt->status.ok()) return attempt->status.with_context("connect to " + std::string(address));
  // Wanted by us, so nobody needs to accept it.
  std::erase(queue_, attempt->peer);
  return attempt->peer;
}

void Joins::on_connected(const std::shared_ptr<ConnectAttempt>& attempt, Result<std::unique_ptr<Channel>> channel) {
  const auto finish = [engine = context_.engine(), attempt](const Status& status) {
    attempt->status = status;
    attempt->done.store(1);
    engine->wake_waiters();
    if (attempt->finished) std::exchange(attempt->finished, nullptr)();
  };
  if (attempt->abandoned) {
    if (channel.ok()) context_.engine()->defer([unwanted = std::shared_ptr<Channel>(std::move(*channel))] {});
    return;
  }
  if (context_.closing().begun()) return finish(context_.usable());
  if (!channel.ok()) return finish(channel.status());
  const ContextId id = (*channel)->identity().context_id;
  std::shared_ptr<PeerImpl> peer;
  if (id == context_.id()) {
    peer = context_.peers().self_handle();
  } else if (peer = context_.peers().find(id); !peer) {
    peer = context_.peers().make(id);
  }
  attempt->peer = peer;
  if (peer->is_self() || peer->link().channel() != nullptr) {
    context_.engine()->defer([extra = std::shared_ptr<Channel>(std::move(*channel))] {});
  } else {
    peer->handshake().attach_outgoing(std::move(*channel));
  }
  peer->when_ready(finish);
}

Result<std::shared_ptr<PeerImpl>> Joins::accept(Deadline deadline) {
  HMC_TRY(context_.usable());
  std::atomic<std::uint32_t> ready{0};
  auto lock = context_.engine()->lock();
  while (true) {
    HMC_TRY(context_.usable());
    if (!queue_.empty()) {
      auto peer = std::move(queue_.front());
      queue_.pop_front();
      return peer;
    }
    ready.store(0);
    waiters_.push_back(&ready);
    lock.unlock();
    const bool woken = context_.engine()->drive_flag(deadline, ready);
    lock = context_.engine()->lock();
    std::erase(waiters_, &ready);
    if (!woken && queue_.empty()) {
      HMC_TRY(context_.usable());
      return accept_too_late();
    }
  }
}

void Joins::serve() {
  while (!queue_.empty() && !waits_.empty()) {
    auto peer = std::move(queue_.front());
    queue_.pop_front();
    waits_.front()->deliver(std::move(peer));
  }
  if (queue_.empty()) return;
  for (auto* waiter : waiters_) waiter->store(1);
}

Result<std::shared_ptr<WorkState>> Joins::iconnect(std::string_view address, Deadline deadline) {
  HMC_TRY(context_.usable());
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  const auto work = std::make_shared<ConnectWait>(context_, address);
  work->start(context_, deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<std::shared_ptr<WorkState>> Joins::iaccept(Deadline deadline) {
  HMC_TRY(context_.usable());
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  const auto work = std::make_shared<AcceptWait>(context_);
  work->start(context_, deadline);
  return std::shared_ptr<WorkState>(work);
}

std::vector<std::string> Joins::addresses() {
  if (!context_.usable().ok()) return {};
  const auto lock = context_.engine()->lock();
  return listener_ ? listener_->addresses() : std::vector<std::string>();
}

template <>
Result<Peer> WorkOf<Peer>::take() const {
  if (!valid()) return Status(Code::invalid_argument, "this Work is empty: it names no operation");
  return static_cast<ResultWork<Peer>&>(*state()).take();
}

}  // namespace hmc
