// Link: what has completed, and how a queue pair starts over after an access error.
#include <algorithm>
#include <string>
#include <utility>

#include "transport/verbs/link.h"

namespace hmc::verbs {

void Link::on_completion(const ibv_wc& completion) {
  if (!ready_) return;
  const std::size_t index = completion.wr_id >> lane_shift & (max_lanes - 1);
  if (index >= lanes_.size()) return;
  Lane& lane = *lanes_[index];
  if ((completion.wr_id & receive_bit) != 0) return on_received(lane, completion);
  if (lane.up()) on_sent(lane, completion);
}

// The completion of a work request is that of all before it. It means that the peer's card has acknowledged, so that:
// - Complete::local: the card reads the source no more.
// - Complete::remote: the bytes have been handed to the peer's memory system, in order and before everything that follows on this
//   queue pair. A CPU that learns of them through a later completion there (a signal) sees them: the completion is written behind
//   them. HMC registers memory without relaxed ordering, so the bus keeps that order. Memory of a device is another place than that
//   of the completion; settle() sees to it.
void Link::on_sent(Lane& lane, const ibv_wc& completion) {
  const auto sequence = static_cast<std::uint32_t>(completion.wr_id) & Lane::sequence_mask;
  const unsigned ahead = (sequence - lane.oldest) & Lane::sequence_mask;
  if (ahead >= lane.posted()) return;  // of a generation that has ended
  if (lane.broken) {                   // flushed: not executed
    if (ahead + 1 == lane.posted()) restart_outbound(lane);
    return;
  }
  const bool good = completion.status == IBV_WC_SUCCESS;
  for (unsigned i = 0; i < ahead + (good ? 1 : 0) && ready_ && lane.up(); ++i) {
    const Record one = lane.pop();
    lane.forget(one);
    retire(one);
  }
  if (good) end_condemned();
  if (good && lane.state == Lane::State::joining) join(lane);
  if (!good && ready_ && lane.up()) broke(lane, completion);
}

void Link::end_condemned() {
  for (const std::uint64_t number : std::exchange(condemned_, {})) {
    if (const auto place = ops_.find(number); place != ops_.end()) finish(place);
  }
}

// It has been executed.
void Link::retire(const Record& one) {
  if (one.kind == Record::Kind::message) return free_sends_.push_back(one.slot);
  const auto place = ops_.find(one.op);
  --place->second->under_way;
  if (one.kind != Record::Kind::settle) place->second->moved += one.bytes;
  step(place);
}

// What comes next for an operation, once nothing of it is under way.
void Link::step(OpPlace place) {
  Op& op = *place->second;
  if (op.under_way != 0) return;
  if (!op.failure.ok()) return condemned_.push_back(op.number);
  if (op.over_again) {
    op.over_again = op.settled = false;
    std::erase(turns_, op.number);  // it may have been on its way still
    op.cursor = op.start;
    op.left = op.bytes;
    op.moved = 0;
    op.lanes = 0;
    return turns_.push_back(op.number);
  }
  if (!op.cursor.at_end()) return;
  if (op.on_device && !op.settled) return settle(place);
  if (!op.signal.empty()) waiting_signals_.push_back(std::move(op.signal));
  finish(place);
}

// Every lane that has carried some of it asks each region of a device for a byte.
void Link::settle(OpPlace place) {
  Op& op = *place->second;
  op.settled = true;
  for (const auto& lane : lanes_) {
    if ((op.lanes >> lane->index & 1) != 0 && lane->state != Lane::State::live) op.over_again = true;
  }
  if ((op.lanes & former_life) != 0) op.over_again = true;
  if (op.over_again) return step(place);
  std::vector<const void*> asked;
  RunCursor cursor = op.start;
  while (!cursor.at_end()) {
    const Run& run = cursor.run();
    const void* region = op.is_put ? static_cast<const void*>(run.remote) : run.local;
    const bool on_device = op.is_put ? static_cast<const VerbsRemoteRegion*>(run.remote)->on_device()
                                     : static_cast<const VerbsLocalRegion*>(run.local)->on_device();
    if (on_device && std::ranges::find(asked, region) == asked.end()) {
      asked.push_back(region);
      for (const auto& lane : lanes_) {
        if ((op.lanes >> lane->index & 1) == 0) continue;
        Record one;
        one.kind = Record::Kind::settle;
        one.op = op.number;
        one.piece = cursor.peek(1);
        one.bytes = one.piece.bytes;
        lane->settles.push_back(one);
        ++op.under_way;
      }
    }
    cursor.advance_blocks(run.count);
  }
}

void Link::finish(OpPlace place) {
  Ops::node_type node = ops_.extract(place);
  Op& op = *node.mapped();
  op.done->complete(std::move(op.failure));
  end_flushes();
  if (op.signal.capacity() > usual_signal) op.signal = {};
  if (spare_ops_.size() < max_spare_ops) spare_ops_.push_back(std::move(node));
}

// The oldest work request has failed.
void Link::broke(Lane& lane, const ibv_wc& completion) {
  const Record& one = lane.record(lane.oldest);
  const std::string text = lane.nic.api().wc_status_str(completion.status);
  if (completion.status == IBV_WC_REM_ACCESS_ERR && one.kind != Record::Kind::message) {
    const RemoteRegion* closed = one.piece.run->remote;
    const Status stale(Code::stale, "the peer has closed that region (" + text + ")", completion.status);
    condemn(one.op, stale);
    // The others that are on their way there, too: each would take a start of its own to find out.
    for (std::uint32_t sequence = lane.oldest; sequence != lane.next; sequence = (sequence + 1) & Lane::sequence_mask) {
      const Record& other = lane.record(sequence);
      if (other.kind != Record::Kind::message && other.piece.run->remote == closed) condemn(other.op, stale);
    }
    for (const std::uint64_t number : std::vector<std::uint64_t>(turns_.begin(), turns_.end())) {
      if (ops_.at(number)->cursor.run().remote == closed) condemn(number, stale);
    }
    lane.broken = true;
    if (lane.posted() == 1) restart_outbound(lane);
    return;
  }
  const bool silent = completion.status == IBV_WC_RETRY_EXC_ERR || completion.status == IBV_WC_RNR_RETRY_EXC_ERR;
  lose(lane,
       Status(silent ? Code::peer_lost : Code::transport,
              lane.nic.name() + ": " + (silent ? "the peer does not answer any more" : "a transfer failed") + " (" + text + ")",
              completion.status));
}

// The operation ends with `reason` once nothing of it is under way.
void Link::condemn(std::uint64_t number, const Status& reason) {
  Op& op = *ops_.at(number);
  if (!op.failure.ok()) return;
  op.failure = reason;
  std::erase(turns_, number);
  const auto of_it = [number](const Record& one) { return one.op == number; };
  op.under_way -= static_cast<unsigned>(std::erase_if(redo_, of_it));
  for (const auto& lane : lanes_) op.under_way -= static_cast<unsigned>(std::erase_if(lane->settles, of_it));
  if (op.under_way == 0) condemned_.push_back(number);
}

void Link::restart_outbound(Lane& lane) {
  std::deque<Record> unsent;
  while (lane.posted() != 0) {
    const Record one = lane.pop();
    lane.forget(one);  // counted anew when it is posted again
    if (one.ordinal != 0) --signals_sent_;
    unsent.push_back(one);
  }
  unsent.insert(unsent.end(), lane.again.begin(), lane.again.end());
  lane.again.clear();
  for (const Record& one : unsent) {
    const auto place = ops_.find(one.op);
    if (place == ops_.end() || place->second->failure.ok()) {
      lane.again.push_back(one);
    } else if (one.kind == Record::Kind::message) {
      free_sends_.push_back(one.slot);
    } else if (--place->second->under_way == 0) {
      condemned_.push_back(one.op);
    }
  }
  ++lane.generation;
  Status status = lane.outbound->restart();
  if (status.ok()) status = lane.connect_outbound(shared_->patience);
  if (!status.ok()) return lose(lane, status);
  lane.broken = false;
  lane.probe = true;
}

}  // namespace hmc::verbs
