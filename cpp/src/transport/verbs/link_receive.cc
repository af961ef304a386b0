// Link: what comes in.
#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "transport/verbs/link.h"

namespace hmc::verbs {

Status Link::post_receive(Lane& lane, unsigned slot) {
  ibv_sge part{reinterpret_cast<std::uintptr_t>(receive_slot(slot)), slot_bytes, lane.memory_key};
  ibv_recv_wr work{};
  work.wr_id = lane.id | receive_bit | (lane.life & life_mask) << life_shift | slot;
  work.sg_list = &part;
  work.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  if (const int error = ibv_post_recv(lane.inbound->handle(), &work, &refused); error != 0) {
    return Status(Code::transport, lane.nic.name() + " refused a receive", error);
  }
  ++lane.receives_posted;
  return {};
}

Status Link::post_receives(Lane& lane, unsigned count) {
  for (; count != 0; --count) {
    const unsigned slot = free_receives_.back();
    free_receives_.pop_back();
    HMC_TRY(post_receive(lane, slot));
  }
  return {};
}

void Link::on_received(Lane& lane, const ibv_wc& completion) {
  constexpr std::uint64_t slot_mask = 0xFFFF;
  if (!lane.inbound || (completion.wr_id >> life_shift & life_mask) != (lane.life & life_mask)) return;
  const auto slot = static_cast<unsigned>(completion.wr_id & slot_mask);
  --lane.receives_posted;
  const bool good = completion.status == IBV_WC_SUCCESS;
  if (good && lane.state == Lane::State::joining) join(lane);
  // What a write with an immediate has taken is the slot's turn, not its memory.
  const bool immediate = good && completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
  if (good && !(immediate ? take_immediate(ntohl(completion.imm_data)) : take_message(slot, completion.byte_len))) return;
  if (!lane.up()) {
    free_receives_.push_back(slot);
    if (lane.state == Lane::State::draining && lane.receives_posted == 0) drained(lane);
    return;
  }
  if (good && !lane.inbound_broken) {
    if (const Status posted = post_receive(lane, slot); !posted.ok()) lose(lane, posted);
    return;
  }
  // Else the peer reached for memory that is not (any more) there for it. Nothing that it sent behind that has been executed.
  lane.inbound_broken = lane.inbound_broken || !good;
  lane.returned.push_back(slot);
  if (lane.receives_posted != 0) return;
  ++lane.inbound_generation;
  lane.inbound_broken = false;
  Status status = lane.inbound->restart();
  for (const unsigned each : std::exchange(lane.returned, {})) {
    if (status.ok()) status = post_receive(lane, each);
  }
  if (status.ok()) status = lane.connect_inbound(shared_->patience);
  if (!status.ok()) lose(lane, status);
}

// False: the link is over.
bool Link::take_message(unsigned slot, std::size_t bytes) {
  const ByteSpan message(receive_slot(slot), std::min(bytes, slot_bytes));
  MessageHead head;
  const bool known = decode_head(message, head) && head.lane < lanes_.size();
  const std::uint32_t news = head.consumed - signals_taken_;
  const bool older = static_cast<std::int32_t>(news) < 0;  // by another lane than what came before
  if (!known || (!older && news > signals_sent_ - signals_taken_)) {
    fail(Status(Code::protocol, "the peer sent a verbs message that this version cannot have sent"));
    return false;
  }
  if (!older) signals_taken_ = head.consumed;
  if (head.kind == MessageKind::credit) return true;
  if (head.kind == MessageKind::lane_up) return on_offer(head, message.subspan(head_bytes));
  if (head.kind == MessageKind::lane_down) {
    Lane& lane = *lanes_[head.lane];
    if (head.life != lane.life) return true;  // told before
    if (std::exchange(lane.peer_left, true)) return true;
    lose(lane, Status(Code::transport, lane.nic.name() + ": the peer has left it"));
    if (ready_ && lane.state == Lane::State::left) decide(lane);
    return ready_;
  }
  ++consumed_;
  if (head.kind == MessageKind::signal_head) {
    if (heads_heard_.add(message.subspan(head_bytes))) return true;
    fail(Status(Code::protocol, "the peer told a head of signals that cannot be"));
    return false;
  }
  // In place: nothing can be written there until the slot is posted again.
  sink_->on_signal(message.subspan(head_bytes));
  return ready_;
}

// False: the link is over.
bool Link::take_immediate(std::uint32_t immediate) {
  const ByteSpan signal = heads_heard_.expand(immediate);
  if (signal.empty()) {
    fail(Status(Code::protocol, "the peer sent a signal whose head it has not told"));
    return false;
  }
  ++consumed_;
  sink_->on_signal(signal);
  return ready_;
}

}  // namespace hmc::verbs
