// Link: what goes out.
#include <algorithm>

#include "transport/verbs/link.h"

namespace hmc::verbs {

Status Link::start(kit::Operation& operation) {
  Op& op = static_cast<Op&>(operation);
  if (op.bytes == 0) {
    finish(op);
    return {};
  }
  bool held = false;
  if (op.after != nullptr) {
    HMC_ASSIGN(const bool reached, op.after->reached());
    held = !reached;
  }
  Transfers::prepare(op);
  if (!held) {
    transfers_.begin(op.number);
  } else {
    held_.push_back(op.number);
    ++shared_->held;
    engine_->kick();  // a polling thread has to ask whether the stream has reached the point
  }
  advance();
  return {};
}

bool Link::release_held() {
  bool any = false;
  for (const std::uint64_t number : std::vector<std::uint64_t>(held_)) {
    Op* const op = transfers_.find(number);
    if (op == nullptr) continue;  // what another one's end has brought about
    const auto reached = op->after->reached();
    if (reached.ok() && !*reached) continue;
    any = true;
    std::erase(held_, number);
    --shared_->held;
    if (reached.ok()) {
      transfers_.begin(number);
      continue;
    }
    op->failure = reached.status();
    finish(*op);
    if (!ready()) return true;
  }
  if (any) advance();
  return any;
}

Status Link::signal(ByteSpan head, ByteSpan body) {
  if (!ready()) [[unlikely]]
    return not_ready();
  HMC_TRY(check_signal(head.size() + body.size()));
  if (waiting_.empty() && post_signal(head, body)) return ready() ? Status() : not_ready();
  static const Status& full =
      *new Status(Code::would_block, "no credit of the peer for another signal");  // never destroyed: threads send during exit
  return full;
}

bool Link::send(ByteSpan signal, std::uint64_t /*put*/) { return post_signal(signal, {}); }

// False: no room.
bool Link::post_signal(ByteSpan head, ByteSpan body) {
  Rail* const rail = rails_.for_messages();
  if (rail == nullptr || rail->out.broken || !rail->out.again.empty() || !outbox_.resend.empty() || !outbox_.room_for_signal(*rail))
    return false;
  Batch batch;
  outbox_.add_message(*rail, batch, {MessageKind::signal}, 0, head, body);
  keeper_.submit(*rail, batch);
  return true;
}

void Link::advance() {
  if (advancing_) return;
  const auto keep = shared_from_this();
  advancing_ = true;
  const auto waits = [this] {
    return transfers_.waits() || outbox_.waits() || std::ranges::any_of(rails_, [](const auto& rail) { return rail->out.waits(); });
  };
  for (bool posted = true; posted && ready() && waits();) {
    posted = false;
    for (std::size_t i = 0; i < rails_.size() && ready(); ++i) {
      Rail& rail = rails_[i];
      if (!rail.up() || rail.out.broken) continue;
      Batch batch;
      if (rail.live() && outbox_.fill(rail, batch)) {
        transfers_.fill(rail, batch);
      } else if (!rail.live() && rail.out.probe && !outbox_.memory.free_sends.empty()) {
        outbox_.fill_probe(rail, batch);
      }
      posted = (batch.count != 0 && keeper_.submit(rail, batch)) || posted;
    }
  }
  advancing_ = false;
}

bool Link::has_unsent() const {
  if (!ready()) return false;
  const auto holds = [](const auto& rail) { return rail->out.holds_signal(); };
  return !waiting_.empty() || !outbox_.resend.empty() || std::ranges::any_of(rails_, holds);
}

}  // namespace hmc::verbs
