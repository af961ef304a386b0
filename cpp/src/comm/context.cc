// ContextImpl: beginning, progress and end.
#include "comm/context_impl.h"

#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/topology/discover.h"

namespace hmc {
namespace {

constexpr std::size_t max_context_name = 255;

Status closed_status() { return Status(Code::closed, "this Context is closed; create another one"); }

}  // namespace

std::string context_id_text(const ContextId& id) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : id) {
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[(half >> shift) & 15];
  }
  return text;
}

ContextImpl::ContextImpl(ContextOptions options) : options_(std::move(options)), fork_epoch_(fork_epoch()) {}

ContextImpl::~ContextImpl() = default;

Result<std::shared_ptr<ContextImpl>> ContextImpl::create(const ContextOptions& options) {
  ContextOptions checked = options;
  if (!(checked.heartbeat_seconds >= 0.1) || checked.heartbeat_seconds > 1e6) {
    return Status(Code::invalid_argument, "heartbeat_seconds is " + std::to_string(checked.heartbeat_seconds) + "; at least 0.1");
  }
  if (checked.name.size() > max_context_name) {
    return Status(Code::invalid_argument, "a name of " + std::to_string(checked.name.size()) + " bytes; at most 255");
  }
  if (checked.name.empty()) checked.name = host_name() + ":" + std::to_string(getpid());
  if (checked.key.empty()) checked.key = env_text("HMC_JOB_KEY").value_or("");
  if (checked.transports.empty()) checked.transports = env_text("HMC_TRANSPORTS").value_or("");
  install_fork_handler();
  auto context = std::make_shared<ContextImpl>(std::move(checked));
  if (const Status started = context->start(); !started.ok()) {
    static_cast<void>(context->close(Deadline::after_seconds(0), true));
    return started;
  }
  return context;
}

Status ContextImpl::start() {
  HMC_ASSIGN(const auto filter, TransportFilter::parse(options_.transports, known_transports()));
  do {
    random_bytes(std::as_writable_bytes(std::span(id_)));
  } while (id_ == ContextId{});
  HMC_ASSIGN(engine_, Engine::create(options_.progress));
  const auto lock = engine_->lock();
  HMC_TRY(joins_.start());
  TransportEnvironment environment;
  environment.engine = engine_;
  environment.listener = &joins_.listener();
  environment.listen_addresses = joins_.listener().addresses();
  transports_.start(environment, filter);
  messenger_ = Messenger::create(*this);
  engine_->add(*this);
  polled_ = true;
  peers_.add_self();
  return {};
}

Status ContextImpl::usable() const {
  if (fork_epoch_ != fork_epoch()) return forked_status();
  if (closed()) return closed_status();
  return {};
}

const std::shared_ptr<WorkState>& ContextState::done_work() {
  if (!done_work_) done_work_ = completed_work(engine());
  return done_work_;
}

bool ContextImpl::poll() {
  const bool ran = tasks_.run();
  return peers_.pump() || ran;
}

bool ContextImpl::arm() { return !busy(); }
bool ContextImpl::busy() const { return peers_.to_pump() || tasks_.pending(); }

void ContextImpl::toss(std::function<void()> task) {
  if (fork_epoch_ != fork_epoch()) return;
  if (tasks_.add(std::move(task))) engine_->wake();
}

Status ContextImpl::close(Deadline deadline, bool force) {
  if (fork_epoch_ != fork_epoch()) return forked_status();
  const std::scoped_lock closing(closing_mutex_);
  if (tasks_.stopped()) return {};
  closed_.store(true);
  std::string lost;
  if (engine_) {
    std::vector<std::shared_ptr<BufferState>> published;
    {
      const auto lock = engine_->lock();
      published = exports_.unpublish_all();
      if (messenger_) messenger_->on_context_closing(closed_status());
      for (const auto& [id, peer] : std::map(peers_.by_id())) peer->closing().leave();
      if (peers_.self()) static_cast<PeerImpl&>(*peers_.self()).closing().leave();
      joins_.end();
      end_waits(closed_status());
      engine_->wake_waiters();
    }
    published.clear();
    engine_->drive(deadline, [this] { return peers_.empty(); });
    const auto lock = engine_->lock();
    bool held = false;
    for (const auto& peer : peers_.ending()) {
      const std::string what = peer->closing().unfinished();
      if (!what.empty()) lost += (lost.empty() ? "" : "; ") + what;
      held = held || peer->link().holds();
    }
    if (held && !force) {
      return Status(Code::timeout, "the Context is closed, but " + lost +
                                       ". Operations on it have not ended, and HMC keeps its own memory until that process goes on "
                                       "or ends; call close again to go on waiting");
    }
  }
  transfers_.worker().stop();
  regions_.worker().stop();
  shut_down();
  return lost.empty() ? Status() : Status(Code::timeout, "the Context was closed before its peers had answered: " + lost);
}

// Everything that needs the lock to be freed goes under it, user memory and threads after. Lock not held.
void ContextImpl::shut_down() {
  std::vector<std::shared_ptr<Exposure>> exposures;
  std::vector<std::shared_ptr<PeerImpl>> peers;
  // Memory that a stopped peer may still write is never given back: whatever came to lie there would be overwritten.
  static auto& kept = *new std::vector<std::shared_ptr<const void>>;
  static std::mutex kept_mutex;
  std::vector<std::shared_ptr<const void>> held;
  if (engine_) {
    {
      const auto lock = engine_->lock();
      for (const auto& peer : std::vector(peers_.ending())) {
        peer->closing().tear_down_now(held);
        peers.push_back(peer);
      }
      if (peers_.self()) {
        static_cast<PeerImpl&>(*peers_.self()).closing().tear_down_now(held);
        peers.push_back(std::static_pointer_cast<PeerImpl>(peers_.self()));
      }
      if (messenger_) messenger_->on_context_over(closed_status());
      peers_.clear();
      group_events_.end();
      tasks_.run();
      // What was deferred (ends of endpoints and channels) runs while its transport still exists.
      for (int round = 0; round < 3; ++round) engine_->poll_once();
      transports_.native_links().end_all();
      exposures = exports_.close_all();
      if (polled_) engine_->remove(*this);
      transports_.stop(*engine_);
      joins_.stop();
      engine_->wake_waiters();
    }
    engine_->stop();
  }
  {
    const std::scoped_lock lock(kept_mutex);
    kept.insert(kept.end(), held.begin(), held.end());
  }
  const auto discarded = tasks_.stop();
}

}  // namespace hmc
