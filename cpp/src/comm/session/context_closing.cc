#include "comm/session/context_closing.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/context_impl.h"
#include "comm/waits.h"
#include "hmc/interrupt.h"

namespace hmc {
namespace {

// Losses that a close names, and that are kept beside a number of further ones.
constexpr std::size_t max_named = 16, max_losses = 4096;

bool is_interrupted() noexcept {
  const auto* const caller = Interruptible::current();
  return caller != nullptr && caller->interrupted();
}

Status interrupted_close() {
  return {Code::cancelled, "a signal interrupted the close of the Context; call close again to wait for the rest"};
}

}  // namespace

Status ContextClosing::reason() { return Status(Code::closed, "this Context is closed; create another one"); }

bool ContextClosing::over() const noexcept { return context_.tasks().stopped(); }

Status ContextClosing::close(Deadline deadline, bool force) {
  Engine& engine = *context_.engine();
  if (engine.forked()) return forked_status();
  if (over()) return {};
  begun_.store(true);
  begin();
  const bool alone = engine.drive(deadline, [this] { return context_.peers().empty() && context_.exports().holds() == 0; });
  if (!alone && !force && is_interrupted()) return interrupted_close();
  std::string outcome;
  {
    const auto lock = engine.lock();
    bool held = false;
    std::string unfinished;
    for (const auto& [id, peer] : std::map(context_.peers().by_id())) peer->closing().give_up();
    for (const auto& peer : context_.peers().ending()) {
      const std::string what = peer->closing().unfinished();
      if (!what.empty()) unfinished += (unfinished.empty() ? "" : "; ") + what;
      held = held || peer->link().holds();
    }
    if (const std::size_t holds = context_.exports().holds(); holds != 0) {
      unfinished +=
          (unfinished.empty() ? "" : "; ") + std::to_string(holds) + " operations of this process on its buffers have not ended";
      held = true;
    }
    if (!unfinished.empty()) outcome = "the Context was closed before its peers had answered: " + unfinished;
    for (std::size_t i = 0; i < lost_.size() && i < max_named; ++i)
      outcome += (outcome.empty() ? "the Context is closed, but " : "; ") + lost_[i].what;
    const std::uint64_t more = more_lost_ + lost_.size() - std::min(lost_.size(), max_named);
    if (more != 0) outcome += "; and likewise " + std::to_string(more) + " times more";
    if (held && !force) {
      return Status(Code::timeout, "the Context is closed, but " + unfinished +
                                       ". Operations on it have not ended, and HMC keeps its own memory until that process goes on "
                                       "or ends; call close again to go on waiting");
    }
  }
  return shut_down(deadline, outcome);
}

void ContextClosing::add_lost(const PeerState& peer, const std::string& what) {
  if (what.empty() || expected_.contains(peer.identity().context_id)) return;
  if (!begun()) log(LogLevel::warning, what);  // perhaps long before the close
  if (lost_.size() < max_losses) {
    lost_.push_back({peer.identity().context_id, what});
  } else {
    ++more_lost_;
  }
}

void ContextClosing::expect_lost(const PeerState& peer) {
  expected_.insert(peer.identity().context_id);
  std::erase_if(lost_, [&](const Loss& loss) { return loss.peer == peer.identity().context_id; });
}

// Nothing new comes in, and what waits ends.
void ContextClosing::begin() {
  std::vector<std::shared_ptr<BufferState>> published;  // destroyed without the lock
  const auto lock = context_.engine()->lock();
  if (stage_ != Stage::open) return;
  published = context_.exports().unpublish_all();
  context_.group_events().context_closes();
  context_.messenger().on_context_closing(reason());
  for (const auto& [id, peer] : std::map(context_.peers().by_id())) peer->closing().leave();
  if (context_.peers().self()) static_cast<PeerImpl&>(*context_.peers().self()).closing().leave();
  context_.joins().end();
  while (!waits_.empty()) waits_.front()->end(reason());
  context_.engine()->wake_waiters();
}

Status ContextClosing::shut_down(Deadline deadline, const std::string& outcome) {
  Engine& engine = *context_.engine();
  bool first = false;
  {
    const auto lock = engine.lock();
    first = stage_ == Stage::open;
    if (first) {
      stage_ = Stage::ending;
      if (!outcome.empty()) outcome_ = Status(Code::timeout, outcome);
    }
  }
  if (!first) {  // another thread does it; it may wait for the end of a callback that called this
    const bool down = engine.drive(deadline, [this] { return stage_ == Stage::down; });
    if (down) return outcome_;
    if (is_interrupted()) return interrupted_close();
    return {Code::timeout,
            "close of the Context: another thread is closing it and was not done before the deadline; call close "
            "again to wait for it"};
  }
  context_.transfers().worker().stop();
  context_.regions().worker().stop();
  tear_down();
  return outcome_;
}

// Everything that needs the lock to be freed goes under it, user memory and threads after. Lock not held.
void ContextClosing::tear_down() {
  Engine& engine = *context_.engine();
  std::vector<std::shared_ptr<Exposure>> exposures;
  std::vector<std::shared_ptr<PeerImpl>> peers;
  // Memory that a stopped peer may still write is never given back: whatever came to lie there would be overwritten.
  static auto& kept = *new std::vector<std::shared_ptr<const void>>;
  static std::mutex kept_mutex;
  std::vector<std::shared_ptr<const void>> held;
  {
    const auto lock = engine.lock();
    peers = context_.peers().ending();
    if (context_.peers().self()) peers.push_back(std::static_pointer_cast<PeerImpl>(context_.peers().self()));
    for (const auto& peer : peers) peer->closing().tear_down_now(held);
    context_.messenger().on_context_over(reason());
    context_.peers().clear();
    context_.group_events().end();
    context_.tasks().run();
    // What was deferred (ends of endpoints and channels) runs while its transport still exists.
    for (int round = 0; round < 3; ++round) engine.poll_once();
    context_.transports().native_links().end_all();
    exposures = context_.exports().close_all();
    engine.remove(context_);
    context_.transports().stop(engine);
    context_.joins().stop();
    stage_ = Stage::down;
    engine.wake_waiters();
  }
  engine.stop();
  {
    const std::scoped_lock lock(kept_mutex);
    kept.insert(kept.end(), held.begin(), held.end());
  }
  const auto discarded = context_.tasks().stop();
}

}  // namespace hmc
