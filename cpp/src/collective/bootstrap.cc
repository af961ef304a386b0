#include "collective/bootstrap.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "collective/entering.h"
#include "collective/interruption.h"

namespace hmc {
namespace {

// An arrival is repeated while there is no answer: the board may not have been up when the first one came.
constexpr auto repeat_every = std::chrono::milliseconds(500);

}  // namespace

Bootstrap::Bootstrap(ContextState& context, std::uint32_t who, std::uint32_t size) : context_(context), who_(who), size_(size) {
  if (who == 0) {
    for (auto& round : rounds_) round.arrivals.resize(size);
  }
}

Result<std::vector<Bytes>> Bootstrap::gather(std::uint32_t round, Bytes value, const std::shared_ptr<PeerState>& board,
                                             Deadline deadline) {
  if (value.size() > max_bootstrap_value) {
    return Status(Code::invalid_argument, "what this process brings to the job takes " + std::to_string(value.size()) +
                                              " bytes to describe, more than " + std::to_string(max_bootstrap_value) +
                                              ": bring fewer devices");
  }
  if (board == nullptr) return gather_here(round, std::move(value), deadline);
  {
    const auto lock = context_.engine()->lock();
    if (board_ != board) later_rounds_failure_ = Status();
    board_ = board;
  }
  return gather_there(round, value, *board, deadline);
}

Result<std::vector<Bytes>> Bootstrap::gather_here(std::uint32_t round, Bytes value, Deadline deadline) {
  const auto engine = context_.engine();
  Round& board = rounds_[round];
  {
    const auto lock = engine->lock();
    arrive_here(round, std::move(value));
  }
  const bool done = engine->drive(deadline, [&board] { return board.complete || !board.failure.ok(); });
  const auto lock = engine->lock();
  if (!done && !board.complete && board.failure.ok()) {
    fail(round,
         interrupted() ? Status(Code::cancelled, "process 0 was interrupted by a signal") : Status(Code::timeout, missing(round)));
  }
  if (!board.complete) return board.failure;
  std::vector<Bytes> values;
  for (auto& arrival : board.arrivals) values.push_back(std::move(arrival.value));
  return values;
}

Result<std::vector<Bytes>> Bootstrap::gather_there(std::uint32_t round, const Bytes& value, PeerState& board, Deadline deadline) {
  const auto engine = context_.engine();
  {
    const auto lock = engine->lock();
    asked_ = round;
    answered_ = !later_rounds_failure_.ok();
    answer_ = later_rounds_failure_;
    gathered_.clear();
  }
  for (bool late = false; !late;) {
    {
      const auto lock = engine->lock();
      if (!answered_) {
        HMC_TRY(board.send_control(control_arrive, encode(job::Arrival{round, who_, size_, wait_ms(deadline), value})));
      }
    }
    Deadline next = Deadline::after(repeat_every);
    late = !deadline.is_never() && deadline.when() <= next.when();
    if (engine->drive(late ? deadline : next, [this] { return answered_; })) break;
    if (interrupted()) return interrupted_status();
  }
  const auto lock = engine->lock();
  if (!answered_) {
    return Status(Code::timeout,
                  "process 0 (" + board.identity().name + ") did not answer before the deadline; it may be stopped or overloaded");
  }
  HMC_TRY(answer_);
  return std::move(gathered_);
}

bool Bootstrap::on_message(PeerState& peer, MessageType type, ByteSpan payload) {
  if (type == control_arrive) {
    on_arrive(peer, payload);
  } else if (type == control_gathered) {
    on_gathered(peer, payload);
  } else {
    return false;
  }
  return true;
}

void Bootstrap::on_gathered(PeerState& peer, ByteSpan payload) {
  if (&peer != board_.get()) return;
  auto answer = job::decode_gathered(payload);
  if (answer && answer->round > asked_ && later_rounds_failure_.ok()) later_rounds_failure_ = answer->status;
  if (answered_ || (answer && answer->round != asked_)) return;
  if (!answer || (answer->status.ok() && answer->values.size() != size_)) {
    answer_ = Status(Code::protocol, "process 0 (" + peer.identity().name + ") sent a malformed table of the job");
  } else {
    answer_ = std::move(answer->status);
    gathered_ = std::move(answer->values);
  }
  answered_ = true;
}

void Bootstrap::on_arrive(PeerState& peer, ByteSpan payload) {
  const auto arrived = job::decode_arrival(payload);
  if (!arrived) return refuse(peer, 0, Status(Code::protocol, "malformed arrival"));
  const std::uint32_t round = arrived->round;
  const std::uint32_t who = arrived->who;
  if (who_ != 0)
    return refuse(peer, round, Status(Code::invalid_argument, "this is process " + std::to_string(who_) + ", not process 0"));
  Round& board = rounds_[round];
  if (arrived->size != size_) {
    return refuse(peer, round,
                  Status(Code::invalid_argument, "process " + std::to_string(who) + " was started for a job of " +
                                                     std::to_string(arrived->size) + " processes, process 0 for one of " +
                                                     std::to_string(size_)));
  }
  if (who == 0 || who >= size_) {
    return refuse(peer, round,
                  Status(Code::invalid_argument, "process number " + std::to_string(who) + " of " + std::to_string(size_) +
                                                     (who == 0 ? ": process 0 is the one that listens here" : ": out of range")));
  }
  Arrival& arrival = board.arrivals[who];
  if (arrival.here && arrival.peer.get() == &peer) return;  // repeated because the answer is slow
  if (board.complete) {
    return refuse(peer, round, Status(Code::would_block, "the job that process 0 formed here is complete"));
  }
  if (!board.failure.ok()) return refuse(peer, round, board.failure);
  if (arrival.here) {
    return refuse(
        peer, round,
        Status(Code::invalid_argument, "rank " + std::to_string(who) + " is taken by " + arrival.peer->identity().name + ", and " +
                                           peer.identity().name + " claims it too: start every process with a rank of its own"));
  }
  arrival = {true, false, peer.shared_from_this(), Bytes(arrived->value.begin(), arrived->value.end()), 0};
  ++board.count;
  if (arrived->wait_ms > 0) {
    arrival.timer =
        context_.engine()->at(Deadline::after(std::chrono::milliseconds(arrived->wait_ms)), [weak = weak_from_this(), round, who] {
          if (const auto self = weak.lock()) self->give_up_on(round, who);
        });
  }
  settle(round);
}

// The deadline of `who` is near: it is told why, and counts as not arrived.
void Bootstrap::give_up_on(std::uint32_t round, std::uint32_t who) {
  Arrival& late = rounds_[round].arrivals[who];
  late.timer = 0;
  if (rounds_[round].complete || !late.here) return;
  const auto sender = late.peer;
  const Status reason(Code::timeout, missing(round));
  late = {};
  late.gave_up = true;
  --rounds_[round].count;
  refuse(*sender, round, reason);
}

void Bootstrap::arrive_here(std::uint32_t round, Bytes value) {
  rounds_[round].arrivals[0] = {true, false, nullptr, std::move(value), 0};
  ++rounds_[round].count;
  settle(round);
}

// Answers everybody once all are here.
void Bootstrap::settle(std::uint32_t round) {
  Round& board = rounds_[round];
  if (board.complete || board.count < size_) return;
  std::vector<Bytes> values;
  for (const auto& arrival : board.arrivals) values.push_back(arrival.value);
  const Bytes message = encode(job::Gathered{round, Status(), std::move(values)});
  if (message.size() > max_control_payload) {
    return fail(round, Status(Code::invalid_argument, "the table of the job's " + std::to_string(size_) + " processes takes " +
                                                          std::to_string(message.size()) + " bytes, more than one message holds"));
  }
  board.complete = true;
  for (auto& arrival : board.arrivals) {
    if (arrival.timer != 0) context_.engine()->cancel_timer(std::exchange(arrival.timer, 0));
    if (arrival.peer) static_cast<void>(arrival.peer->send_control(control_gathered, message));  // gone: it is noticed as lost
  }
  context_.engine()->wake_waiters();
}

void Bootstrap::fail(std::uint32_t round, const Status& reason) {
  Round& board = rounds_[round];
  if (board.complete || !board.failure.ok()) return;
  board.failure = reason;
  for (std::uint32_t who = 0; who < size_; ++who) {
    Arrival& arrival = board.arrivals[who];
    if (arrival.timer != 0) context_.engine()->cancel_timer(std::exchange(arrival.timer, 0));
    // Also to processes of the first round that have not asked yet: this process may have ended when they do.
    const auto& peer = arrival.peer || !rounds_[0].complete ? arrival.peer : rounds_[0].arrivals[who].peer;
    if (peer) refuse(*peer, round, reason);
  }
  context_.engine()->wake_waiters();
}

void Bootstrap::refuse(PeerState& peer, std::uint32_t round, const Status& reason) {
  static_cast<void>(peer.send_control(control_gathered, encode(job::Gathered{round, reason, {}})));  // gone: nobody to tell
}

std::string Bootstrap::missing(std::uint32_t round) const {
  constexpr std::uint32_t shown = 32;
  const Round& board = rounds_[round];
  std::string ranks;
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < size_; ++i) {
    if (board.arrivals[i].here || board.arrivals[i].gave_up) continue;
    if (count++ < shown) ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(i);
  }
  if (count == 0) return "of " + std::to_string(size_) + " processes some gave up before the last one came; allow more time";
  if (count > shown) ranks += " and " + std::to_string(count - shown) + " more";
  return "of " + std::to_string(size_) + " processes " + std::to_string(count) + " did not come before the deadline: " + ranks;
}

void Bootstrap::on_peer_gone(PeerState& peer, const Status& reason) {
  if (&peer == board_.get()) {
    if (later_rounds_failure_.ok()) later_rounds_failure_ = reason.with_context("process 0");
    if (!std::exchange(answered_, true)) answer_ = later_rounds_failure_;
    context_.engine()->wake_waiters();
  }
  if (who_ != 0) return;
  for (std::uint32_t round = 0; round < bootstrap_rounds; ++round) {
    Round& board = rounds_[round];
    if (board.complete) continue;
    for (std::uint32_t who = 0; who < size_; ++who) {
      Arrival& arrival = board.arrivals[who];
      // Registered in round 0: it cannot register again.
      const bool registered = round > 0 && rounds_[0].complete && rounds_[0].arrivals[who].peer.get() == &peer;
      if (!registered && (!arrival.here || arrival.peer.get() != &peer)) continue;
      if (arrival.gave_up) {  // it ends because others are missing: they are the reason
        fail(round, Status(Code::timeout, missing(round)));
        continue;
      }
      if (arrival.timer != 0) context_.engine()->cancel_timer(arrival.timer);
      if (arrival.here) --board.count;
      arrival = {};
      // In round 0 a process that closed may retry; one that died ends the job.
      if (registered || reason.code() != Code::closed)
        fail(round, reason.with_context("rank " + std::to_string(who) + " while the job was forming"));
    }
  }
}

}  // namespace hmc
