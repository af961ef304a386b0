#include "transport/verbs/transfers.h"

#include <algorithm>
#include <utility>

#include "transport/verbs/region.h"

namespace hmc::verbs {

void Transfers::prepare(Op& op) {
  op.start = op.cursor;
  op.left = op.bytes;
  for (RunCursor cursor = op.start; !cursor.at_end(); cursor.advance_blocks(cursor.run().count)) {
    const Run& run = cursor.run();
    op.on_device = op.on_device || (op.is_put ? remote_of(run).on_device() : local_of(run).on_device());
    op.numa_node = std::max(op.numa_node, local_of(run).numa_node());
  }
}

void Transfers::fill(Rail& rail, Batch& batch) {
  while (!redo_.empty() && !batch.full() && rail.out.room_for_data()) {
    find(redo_.front().op)->rails |= rail.bit();
    outbox_.add(rail, batch, redo_.front());
    redo_.pop_front();
  }
  const bool several = rails_.live() > 1;
  const bool first = rails_.first_live() == &rail;
  for (std::size_t i = 0; i < std::min(turns_.size(), max_begun) && !batch.full() && rail.out.room_for_data();) {
    const std::uint64_t number = turns_[i];
    Op& op = *find(number);
    if (several && !(op.bytes <= split_bytes ? first : rails_.takes(rail, op.numa_node, op.left))) {
      ++i;
      continue;
    }
    turns_.erase(turns_.begin() + static_cast<std::ptrdiff_t>(i));
    fill_op(rail, batch, op);
    // Behind the others whose turn it is, not behind those that have not begun.
    if (!op.cursor.at_end())
      turns_.insert(turns_.begin() + static_cast<std::ptrdiff_t>(std::min(turns_.size(), max_begun - 1)), number);
  }
}

void Transfers::fill_op(Rail& rail, Batch& batch, Op& op) {
  op.started = true;
  op.rails |= rail.bit();
  std::size_t budget = chunk_bytes;
  const std::size_t left_before = op.left;
  while (!op.cursor.at_end() && budget != 0 && !batch.full() && rail.out.room_for_data()) {
    Record one;
    one.kind = op.is_put ? Record::Kind::write : Record::Kind::read;
    one.op = op.number;
    one.piece = op.cursor.peek(std::min(budget, rail.out.piece_bytes()));
    one.bytes = one.piece.bytes;
    if (one.bytes == op.left && may_follow(rail, op)) {
      if (const auto immediate = outbox_.immediate(rail, batch, op.signal)) {
        one.ordinal = 1;
        one.immediate = *immediate;
        op.signal.clear();
      }
    }
    outbox_.add(rail, batch, one);
    op.cursor.advance(one.bytes);
    op.left -= one.bytes;
    ++op.in_flight;
    budget -= one.bytes;
  }
  for (const auto& other : rails_) {
    if (other.get() != &rail) other->out.passed_over(left_before - op.left);
  }
  if (!op.cursor.at_end() || batch.full() || !may_follow(rail, op)) return;
  outbox_.add_message(rail, batch, {MessageKind::signal}, op.number, op.signal, {});
  op.signal.clear();
}

// Its signal may go right behind its bytes: they all went this way. Else the end of the operation sends it.
bool Transfers::may_follow(const Rail& rail, const Op& op) const noexcept {
  return !op.signal.empty() && !op.on_device && op.rails == rail.bit() && outbox_.takes_signal(rail);
}

Op* Transfers::executed(const Record& one) {
  if (one.kind == Record::Kind::message) return outbox_.memory.free_sends.push_back(one.slot), nullptr;
  Op& op = *find(one.op);
  --op.in_flight;
  if (!one.settles()) op.moved += one.bytes;
  return step(op);
}

Op* Transfers::step(Op& op) {
  if (op.in_flight != 0) return nullptr;
  if (!op.failure.ok()) return condemned_.push_back(op.number), nullptr;
  if (!op.over_again) {
    if (!op.cursor.at_end()) return nullptr;
    if (!op.on_device || op.settled) return &op;
    op.settled = true;
    if (settle(op)) return nullptr;
  }
  op.over_again = op.settled = false;
  std::erase(turns_, op.number);  // it may have been on its way still
  op.cursor = op.start;
  op.left = op.bytes;
  op.moved = 0;
  op.rails = 0;
  turns_.push_back(op.number);
  return nullptr;
}

// Every rail that has carried some of it asks each region of a device for a byte. False: one of them carries no more.
bool Transfers::settle(Op& op) {
  for (const auto& rail : rails_) {
    if ((op.rails & rail->bit()) != 0 && !rail->live()) return false;
  }
  if ((op.rails & former_life) != 0) return false;
  std::vector<const void*> asked;
  RunCursor cursor = op.start;
  while (!cursor.at_end()) {
    const Run& run = cursor.run();
    const void* region = op.is_put ? static_cast<const void*>(run.remote) : run.local;
    const bool on_device = op.is_put ? remote_of(run).on_device() : local_of(run).on_device();
    if (on_device && std::ranges::find(asked, region) == asked.end()) {
      asked.push_back(region);
      for (const auto& rail : rails_) {
        if ((op.rails & rail->bit()) == 0) continue;
        Record one;
        one.kind = op.is_put ? Record::Kind::settle_put : Record::Kind::settle_get;
        one.op = op.number;
        one.piece = cursor.peek(1);
        one.bytes = one.piece.bytes;
        rail->out.settles.push_back(one);
        ++op.in_flight;
      }
    }
    cursor.advance_blocks(run.count);
  }
  return true;
}

// Those in flight, too: each would take a start of its queue to find out.
void Transfers::condemn(const RemoteRegion* closed, SendQueue& queue, const Status& reason) {
  for (std::uint32_t sequence = queue.oldest; sequence != queue.next; sequence = (sequence + 1) & SendQueue::sequence_mask) {
    const Record& one = queue.record(sequence);
    if (one.kind != Record::Kind::message && one.piece.run->remote == closed) condemn(*find(one.op), reason);
  }
  // In one pass: there may be very many.
  std::erase_if(turns_, [&](std::uint64_t number) {
    Op& op = *find(number);
    if (op.cursor.run().remote == closed) condemn(op, reason);
    return !op.failure.ok();
  });
}

void Transfers::condemn(Op& op, const Status& reason) {
  if (!op.failure.ok()) return;
  op.failure = reason;
  if (op.in_flight != 0) {
    const auto of_it = [&op](const Record& one) { return one.op == op.number; };
    op.in_flight -= static_cast<unsigned>(std::erase_if(redo_, of_it));
    for (const auto& rail : rails_) op.in_flight -= static_cast<unsigned>(std::erase_if(rail->out.settles, of_it));
  }
  if (op.in_flight == 0) condemned_.push_back(op.number);
}

bool Transfers::again(const Record& one) {
  Op* const op = find(one.op);
  if (op == nullptr || op->failure.ok()) return true;
  if (one.kind == Record::Kind::message) {
    outbox_.memory.free_sends.push_back(one.slot);
  } else if (--op->in_flight == 0) {
    condemned_.push_back(one.op);
  }
  return false;
}

void Transfers::doubt(const Record& one) {
  Op* const op = find(one.op);
  if (one.kind == Record::Kind::message) {
    const ByteSpan signal(outbox_.memory.send_slot(one.slot) + head_bytes, one.ordinal != 0 ? one.bytes - head_bytes : 0);
    const bool behind_bytes = one.ordinal != 0 && op != nullptr;
    if (one.ordinal != 0 && !behind_bytes) return outbox_.resend.push_back(one);
    if (behind_bytes) op->signal.assign(signal.begin(), signal.end());
    return outbox_.memory.free_sends.push_back(one.slot);
  }
  if (!one.settles() && op->failure.ok()) {  // still in flight, on none
    Record again = one;
    if (std::exchange(again.ordinal, 0) != 0) {  // its signal follows when all has arrived
      const ByteSpan signal = outbox_.heads.expand(one.immediate);
      op->signal.assign(signal.begin(), signal.end());
    }
    return redo_.push_back(again);
  }
  --op->in_flight;
  op->over_again = true;
}

std::vector<std::uint64_t> Transfers::idle_without(const Rail& gone) const {
  std::vector<std::uint64_t> idle;
  for (const auto& [number, operation] : operations_.all()) {
    Op& op = static_cast<Op&>(*operation);
    if ((op.rails & gone.bit()) != 0) op.rails |= former_life;
    if (op.started && op.in_flight == 0) idle.push_back(number);
  }
  return idle;
}

void Transfers::stop() noexcept {
  turns_.clear();
  redo_.clear();
  condemned_.clear();
}

}  // namespace hmc::verbs
