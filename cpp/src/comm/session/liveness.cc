#include "comm/session/liveness.h"

#include <utility>

#include "comm/context_state.h"
#include "comm/peer_state.h"
#include "comm/wire/codec.h"

namespace hmc {
namespace {

// In flight; what fails beyond them is reported as it failed.
constexpr std::size_t max_questions = 1024;
// The channel of a dying process ends sooner.
constexpr double answer_seconds = 2;

}  // namespace

bool Liveness::ask(std::function<void()> action) {
  if (peer_.is_self() || peer_.phase() != PeerPhase::ready || questions_.size() >= max_questions) return false;
  const std::uint64_t number = asked_ + 1;
  const Status sent = peer_.send_control(wire::are_you_alive, wire::encode_request(number));
  if (sent.code() == Code::would_block) return false;
  if (!sent.ok()) return true;  // the channel is broken and about to report its end
  asked_ = number;
  const auto timer = peer_.context().engine()->at(Deadline::after_seconds(answer_seconds), [this, number] { over(number); });
  questions_.emplace(number, Question{std::move(action), timer});
  return true;
}

bool Liveness::answer(std::uint64_t question) {
  if (question <= answered_ || question > asked_) return false;
  answered_ = question;
  if (const auto found = questions_.find(question); found != questions_.end()) {
    peer_.context().engine()->cancel_timer(found->second.timer);
    over(question);
  }
  return true;
}

// Answered, or the time is over: a stopped process does not answer, and has not died.
void Liveness::over(std::uint64_t question) {
  const auto keep = peer_.shared_from_this();
  const auto node = questions_.extract(question);
  if (!node.empty()) node.mapped().action();
  peer_.context().engine()->wake_waiters();
}

void Liveness::end() {
  for (const auto& [number, question] : std::exchange(questions_, {})) peer_.context().engine()->cancel_timer(question.timer);
}

}  // namespace hmc
