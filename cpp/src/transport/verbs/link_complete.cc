// Link: what has completed, what came in, and how a queue pair starts over after an access error.
#include <algorithm>
#include <string>
#include <utility>

#include "transport/verbs/link.h"

namespace hmc::verbs {

void Link::on_completion(const ibv_wc& completion) {
  if (!ready_) return;
  if ((completion.wr_id & receive_bit) != 0) return on_received(completion);
  on_sent(completion);
}

// The completion of a work request is that of all before it. It means that the peer's card has acknowledged, so that:
// - Complete::local: the card reads the source no more.
// - Complete::remote: the bytes have been handed to the peer's memory system, in order and before everything that follows on this
//   queue pair. A CPU that learns of them through a later completion there (a signal) sees them: the completion is written behind
//   them. HMC registers memory without relaxed ordering, so the bus keeps that order.
void Link::on_sent(const ibv_wc& completion) {
  const auto sequence = static_cast<std::uint32_t>(completion.wr_id) & sequence_mask;
  const unsigned ahead = (sequence - oldest_) & sequence_mask;
  if (ahead >= posted()) return;  // of a generation that has ended
  if (broken_) {                  // flushed: not executed
    if (ahead + 1 == posted()) restart_outbound();
    return;
  }
  const bool good = completion.status == IBV_WC_SUCCESS;
  for (unsigned i = 0; i < ahead + (good ? 1 : 0) && ready_; ++i) {
    const Record one = record(oldest_);
    oldest_ = (oldest_ + 1) & sequence_mask;
    retire(one);
  }
  for (const std::uint64_t number : good ? std::exchange(condemned_, {}) : std::vector<std::uint64_t>{}) {
    if (const auto place = ops_.find(number); place != ops_.end()) finish(place);
  }
  if (!good && ready_) broke(completion);
}

// Gives back what a work request held of the queue.
void Link::forget(const Record& one) {
  if (one.kind == Record::Kind::message) {
    free_slots_.push_back(one.slot);
  } else {
    --data_posted_;
    bytes_posted_ -= one.bytes;
  }
}

void Link::retire(const Record& one) {
  forget(one);
  if (one.kind == Record::Kind::message) return;
  const auto place = ops_.find(one.op);
  Op& op = *place->second;
  --op.under_way;
  op.moved += one.bytes;
  if (op.under_way == 0 && op.cursor.at_end()) finish(place);
}

void Link::finish(std::map<std::uint64_t, std::unique_ptr<Op>>::iterator place) {
  const std::unique_ptr<Op> op = std::move(place->second);
  ops_.erase(place);
  op->done->complete(std::move(op->failure));
  end_flushes();
}

// The oldest work request has failed.
void Link::broke(const ibv_wc& completion) {
  const Record& one = record(oldest_);
  const std::string text = nic_.api().wc_status_str(completion.status);
  if (completion.status == IBV_WC_REM_ACCESS_ERR && one.kind != Record::Kind::message) {
    const RemoteRegion* closed = one.piece.run->remote;
    const Status stale(Code::stale, "the peer has closed that region (" + text + ")", completion.status);
    condemn(one.op, stale);
    // The others that are on their way there, too: each would take a start of its own to find out.
    for (std::uint32_t sequence = oldest_; sequence != next_; sequence = (sequence + 1) & sequence_mask) {
      const Record& other = record(sequence);
      if (other.kind != Record::Kind::message && other.piece.run->remote == closed) condemn(other.op, stale);
    }
    for (const std::uint64_t number : std::vector<std::uint64_t>(turns_.begin(), turns_.end())) {
      Op& op = *ops_.at(number);
      if (op.cursor.run().remote != closed) continue;
      condemn(number, stale);
      if (op.under_way == 0) condemned_.push_back(number);
    }
    broken_ = true;
    if (posted() == 1) restart_outbound();
    return;
  }
  const bool silent = completion.status == IBV_WC_RETRY_EXC_ERR || completion.status == IBV_WC_RNR_RETRY_EXC_ERR;
  fail(Status(silent ? Code::peer_lost : Code::transport,
              nic_.name() + ": " + (silent ? "the peer does not answer any more" : "a transfer failed") + " (" + text + ")",
              completion.status));
}

// The operation ends with `reason` once nothing of it is under way.
void Link::condemn(std::uint64_t number, const Status& reason) {
  Op& op = *ops_.at(number);
  if (!op.failure.ok()) return;
  op.failure = reason;
  std::erase(turns_, number);
  std::erase_if(waiting_signals_, [&](const WaitingSignal& waiting) { return waiting.op == number; });
}

void Link::restart_outbound() {
  std::deque<Record> unsent;
  for (; posted() != 0; oldest_ = (oldest_ + 1) & sequence_mask) {
    const Record& one = record(oldest_);
    if (one.kind != Record::Kind::message) forget(one);  // counted anew when it is posted again
    unsent.push_back(one);
  }
  unsent.insert(unsent.end(), again_.begin(), again_.end());
  again_.clear();
  for (const Record& one : unsent) {
    const auto place = ops_.find(one.op);
    if (place == ops_.end() || place->second->failure.ok()) {
      again_.push_back(one);
    } else if (one.kind == Record::Kind::message) {
      forget(one);
      --signals_sent_;
    } else if (--place->second->under_way == 0) {
      condemned_.push_back(one.op);
    }
  }
  ++generation_;
  Status status = outbound_->restart();
  if (status.ok()) {
    status = outbound_->connect(peer_.port, peer_.inbound, sequence_of(own_.sequence, generation_), shared_->patience);
  }
  if (!status.ok()) return fail(status);
  broken_ = false;
  probe_ = true;
}

Status Link::post_receive(unsigned slot) {
  ibv_sge part{reinterpret_cast<std::uintptr_t>(receive_slot(slot)), slot_bytes, memory_handle_->lkey};
  ibv_recv_wr work{};
  work.wr_id = std::uint64_t{number_} << 32 | receive_bit | slot;
  work.sg_list = &part;
  work.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  if (const int error = ibv_post_recv(inbound_->handle(), &work, &refused); error != 0) {
    return Status(Code::transport, nic_.name() + " refused a receive", error);
  }
  ++receives_posted_;
  return {};
}

// Also starts it for the first time.
Status Link::restart_inbound() {
  for (unsigned slot = 0; slot < slots; ++slot) HMC_TRY(post_receive(slot));
  return inbound_->connect(peer_.port, peer_.outbound, sequence_of(peer_.sequence, inbound_generation_), shared_->patience);
}

void Link::on_received(const ibv_wc& completion) {
  const auto slot = static_cast<unsigned>(completion.wr_id & ~std::uint64_t{receive_bit} & 0xFFFFFFFF);
  --receives_posted_;
  if (completion.status == IBV_WC_SUCCESS) {
    if (!take_message(slot, completion.byte_len)) return;
    if (!inbound_broken_) {
      if (const Status posted = post_receive(slot); !posted.ok()) fail(posted);
      return;
    }
  } else {
    // The peer reached for memory that is not (any more) there for it. Nothing that it sent behind that has been executed.
    inbound_broken_ = true;
  }
  if (receives_posted_ != 0) return;
  ++inbound_generation_;
  Status status = inbound_->restart();
  inbound_broken_ = false;
  if (status.ok()) status = restart_inbound();
  if (!status.ok()) fail(status);
}

// False: the link is over.
bool Link::take_message(unsigned slot, std::size_t bytes) {
  const ByteSpan message(receive_slot(slot), std::min(bytes, slot_bytes));
  MessageHead head;
  const bool known = decode_head(message, head);
  if (!known || head.consumed - signals_taken_ > signals_sent_ - signals_taken_) {
    fail(Status(Code::protocol, "the peer sent a verbs message that this version cannot have sent"));
    return false;
  }
  signals_taken_ = head.consumed;
  if (head.kind == MessageKind::credit) return true;
  ++consumed_;
  // In place: nothing can be written there until the slot is posted again.
  sink_->on_signal(message.subspan(head_bytes));
  return ready_;
}

}  // namespace hmc::verbs
