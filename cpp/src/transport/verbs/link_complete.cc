// Link: what has completed, and what has come in.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "transport/verbs/link.h"

namespace hmc::verbs {

void Link::on_completion(const ibv_wc& completion) {
  if (!ready()) return;
  const std::size_t index = Rail::index_of(completion.wr_id);
  if (index >= rails_.size()) return;
  Rail& rail = rails_[index];
  if ((completion.wr_id & Rail::receive_bit) != 0) return on_received(rail, completion);
  if (rail.up()) on_sent(rail, completion);
}

void Shared::take(const ibv_wc& completion) {
  const auto place = links.find(Rail::link_of(completion.wr_id));
  const std::shared_ptr<Link> link = place == links.end() ? nullptr : place->second.lock();
  if (!link) return;
  link->on_completion(completion);
  if (link->waiting_turn) return;
  link->waiting_turn = true;
  turns.push_back(link);
}

// The queues are those of all links of a card: what is found for others is theirs, as in a poll.
void Link::receive_rest() {
  const auto keep = shared_from_this();
  for (std::size_t i = 0; i < rails_.size() && ready(); ++i) {
    rails_[i].nic.queues().drain([shared = shared_.get()](const ibv_wc& completion) { shared->take(completion); });
  }
  engine_->kick();  // what the links answer is for the next poll
}

// The completion of a work request is that of all before it. It means that the peer's card has acknowledged, so that:
// - Complete::local: the card reads the source no more.
// - Complete::remote: the bytes have been handed to the peer's memory system, in order and before everything that follows on this
//   queue pair. A CPU that learns of them through a later completion there (a signal) sees them: the completion is written behind
//   them. HMC registers memory without relaxed ordering, so the bus keeps that order. Memory of a device is another place than that
//   of the completion; Transfers::settle() sees to it.
void Link::on_sent(Rail& rail, const ibv_wc& completion) {
  const auto sequence = static_cast<std::uint32_t>(completion.wr_id) & SendQueue::sequence_mask;
  const auto ahead = [&] { return (sequence - rail.out.oldest) & SendQueue::sequence_mask; };
  if (ahead() >= rail.out.posted()) return;  // of a generation that has ended
  if (rail.out.broken) {                     // flushed: not executed
    if (ahead() + 1 == rail.out.posted()) restart_outbound(rail);
    return;
  }
  const bool good = completion.status == IBV_WC_SUCCESS;
  // A callback may bring in what has completed behind it.
  while (ready() && rail.up() && ahead() < rail.out.posted() && (good || ahead() != 0)) {
    if (Op* const ended = transfers_.executed(rail.out.retire(true)); ended != nullptr) finish(*ended);
  }
  if (!good) {
    if (ready() && rail.up() && ahead() == 0) broke(rail, completion);
    return;
  }
  for (const std::uint64_t number : transfers_.take_condemned()) {
    if (Op* const op = transfers_.find(number); op != nullptr) finish(*op);
  }
  keeper_.on_answer(rail);
}

// The oldest work request has failed.
void Link::broke(Rail& rail, const ibv_wc& completion) {
  const Record& one = rail.out.record(rail.out.oldest);
  const std::string text = rail.nic.api().wc_status_str(completion.status);
  if (completion.status == IBV_WC_REM_ACCESS_ERR && one.kind != Record::Kind::message) {
    const Status stale(Code::stale, "the peer has closed that region (" + text + ")", completion.status);
    transfers_.condemn(one.piece.run->remote, rail.out, stale);
    rail.out.broken = true;
    if (rail.out.posted() == 1) restart_outbound(rail);
    return;
  }
  const bool silent = completion.status == IBV_WC_RETRY_EXC_ERR || completion.status == IBV_WC_RNR_RETRY_EXC_ERR;
  keeper_.lose(rail, Status(silent ? Code::peer_lost : Code::transport,
                            rail.nic.name() + ": " + (silent ? "the peer does not answer any more" : "a transfer failed") + " (" +
                                text + ")",
                            completion.status));
}

void Link::restart_outbound(Rail& rail) {
  std::deque<Record> unsent;
  while (rail.out.posted() != 0) {
    unsent.push_back(rail.out.retire(false));
    if (unsent.back().ordinal != 0) outbox_.credit.refund();
  }
  unsent.insert(unsent.end(), rail.out.again.begin(), rail.out.again.end());
  std::erase_if(unsent, [this](const Record& one) { return !transfers_.again(one); });
  rail.out.again = std::move(unsent);
  keeper_.restart_outbound(rail);
}

// What was in flight on it is in doubt: a write may have been executed without its acknowledgement coming back, or may sit in the
// network still. It is posted again on another rail, which is right because of three things.
// - Until an operation has been reported as complete, nobody may rely on what its target holds, so writing the same bytes there a
//   second time changes nothing for anybody.
// - After it has been reported nothing of the first attempt may land: the target may hold other bytes by then. So nothing is posted
//   again before the peer has closed its end (rail_down): its card executes nothing of that connection afterwards.
// - What the peer was told about by a signal must not be written again, for the signal lets it use the memory. One connection
//   executes in order, and the peer says how many signals it has taken: everything ahead of the last of them has been executed and
//   counts as done; signals behind it have not been, and are sent again.
void Link::on_gone(Rail& rail) {
  std::vector<Record> all;
  std::size_t until = 0;  // executed
  while (rail.out.posted() != 0) {
    all.push_back(rail.out.retire(false));
    const Record& one = all.back();
    if (one.ordinal != 0 && outbox_.credit.taken(one.ordinal)) until = all.size();
  }
  // A read whose answer was lost has been executed, and is worth nothing.
  const auto done = [&](std::size_t i) {
    return i < until && (all[i].kind == Record::Kind::write || all[i].kind == Record::Kind::message);
  };
  // Of an earlier rail, and not posted since: what of that was posted on this one stands before it.
  const std::deque<Record> behind = std::exchange(outbox_.resend, {});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (done(i)) continue;
    if (all[i].ordinal != 0) outbox_.credit.refund();
    transfers_.doubt(all[i]);
  }
  for (const Record& one : std::exchange(rail.out.again, {})) transfers_.doubt(one);
  for (const Record& one : std::exchange(rail.out.settles, {})) transfers_.doubt(one);
  outbox_.resend.insert(outbox_.resend.end(), behind.begin(), behind.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    Op* const ended = done(i) ? transfers_.executed(all[i]) : nullptr;
    if (ended != nullptr) finish(*ended);
    if (!ready()) return;
  }
  for (const std::uint64_t number : transfers_.idle_without(rail)) {
    Op* const op = transfers_.find(number);
    if (op != nullptr && transfers_.step(*op) != nullptr) finish(*op);
    if (!ready()) return;
  }
  // What failed ends with the next answer of the peer.
  for (const auto& other : rails_) {
    if (transfers_.any_condemned() && other->live()) other->out.probe = true;
  }
}

void Link::on_received(Rail& rail, const ibv_wc& completion) {
  const auto slot = rail.slot_of(completion);
  if (!slot) return;
  const bool good = completion.status == IBV_WC_SUCCESS;
  if (good) {
    keeper_.on_answer(rail);
    // It counts as posted until it has been taken: the sink may ask for the rest, and meanwhile the rail is not gone or replaced.
    if (!take(*slot, completion)) return;
  }
  --rail.in.posted;
  keeper_.on_receive_done(rail, *slot, good);
}

// False: the link is over.
bool Link::take(unsigned slot, const ibv_wc& completion) {
  // What a write with an immediate has taken is the slot's turn, not its memory.
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    const ByteSpan expanded = heads_heard_.expand(ntohl(completion.imm_data));
    if (expanded.empty()) {
      fail(Status(Code::protocol, "the peer sent a signal whose head it has not told"));
      return false;
    }
    std::array<std::byte, max_signal_head + signal_number_bytes> signal;  // valid also where the sink asks for the rest
    std::ranges::copy(expanded, signal.begin());
    outbox_.credit.consume();
    sink_->on_signal(ByteSpan(signal).first(expanded.size()));
    return ready();
  }
  const ByteSpan message(outbox_.memory.receive_slot(slot), std::min<std::size_t>(completion.byte_len, slot_bytes));
  MessageHead head;
  const bool known = decode_head(message, head) && head.rail < rails_.size();
  if (!known || !outbox_.credit.on_told(head.consumed)) {
    fail(Status(Code::protocol, "the peer sent a verbs message that this version cannot have sent"));
    return false;
  }
  if (head.kind == MessageKind::credit) return true;
  const ByteSpan body = message.subspan(head_bytes);
  if (!counts_as_signal(head.kind)) return keeper_.on_message(head, body);
  outbox_.credit.consume();
  if (head.kind == MessageKind::signal_head) {
    if (heads_heard_.add(body)) return true;
    fail(Status(Code::protocol, "the peer told a head of signals that cannot be"));
    return false;
  }
  // In place: nothing can be written there until the slot is posted again.
  sink_->on_signal(body);
  return ready();
}

}  // namespace hmc::verbs
