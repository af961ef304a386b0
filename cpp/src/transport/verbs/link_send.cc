// Link: what goes out.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "device/links.h"
#include "transport/verbs/link.h"

namespace hmc::verbs {
namespace {

constexpr std::size_t scratch_offset = 64;  // in the sink's page, for what is read to settle

const VerbsRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const VerbsRemoteRegion&>(*run.remote); }
const VerbsLocalRegion& local_of(const Run& run) noexcept { return static_cast<const VerbsLocalRegion&>(*run.local); }
bool empty(const Run& run) noexcept { return run.count == 0 || run.block == 0; }

Status too_large(std::size_t bytes) {
  return Status(Code::invalid_argument, "a signal of " + std::to_string(bytes) + " bytes; at most " + std::to_string(max_signal));
}

}  // namespace

Status Link::check_reach(const TransferOp& transfer, bool is_put) const {
  for (const Run& run : transfer.runs) {
    if (empty(run)) continue;
    if (is_put && !remote_of(run).writable()) {
      return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
    }
    if (!local_of(run).on_device()) continue;
    for (const auto& lane : lanes_) {
      if (!local_of(run).known_to(lane->nic))
        return Status(Code::unsupported, lane->nic.name() + " does not reach memory of " + run.local->view().span.device.str());
    }
  }
  return {};
}

Status Link::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (!ready_) [[unlikely]]
    return not_ready();
  HMC_ASSIGN(const std::size_t bytes, check_runs(transfer.runs));
  HMC_TRY(check_reach(transfer, is_put));
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (signal.size() > max_signal) return too_large(signal.size());
  if (!signal.empty() && waiting_signals_.size() >= max_waiting_signals) {
    return Status(Code::would_block, "too many attached signals wait for credit of the peer");
  }
  const RunCursor start(transfer.runs);
  if (start.at_end()) {
    if (!signal.empty()) waiting_signals_.emplace_back(signal.begin(), signal.end());
    advance();
    if (!ready_) return failure_;
    done->complete({});
    return {};
  }
  bool held = false;
  if (transfer.after != nullptr) {
    HMC_ASSIGN(const bool reached, transfer.after->reached());
    held = !reached;
  }
  Op& op = add_op();
  op.start = op.cursor = start;
  op.done = done;
  op.bytes = op.left = bytes;
  op.is_put = is_put;
  op.signal.assign(signal.begin(), signal.end());
  for (const Run& run : transfer.runs) {
    if (empty(run)) continue;
    op.on_device = op.on_device || (is_put ? remote_of(run).on_device() : local_of(run).on_device());
    op.numa_node = std::max(op.numa_node, local_of(run).numa_node());
  }
  if (!held) {
    turns_.push_back(op.number);
  } else {
    op.after = transfer.after;
    held_.push_back(op.number);
    ++shared_->held;
    shared_->engine->kick();  // somebody has to ask whether the stream has got there
  }
  advance();
  return {};
}

// With the next number, and nothing else.
Link::Op& Link::add_op() {
  const std::uint64_t number = ++last_number_;
  if (spare_ops_.empty()) {
    Op& op = *ops_.emplace_hint(ops_.end(), number, std::make_unique<Op>())->second;
    op.number = number;
    return op;
  }
  Ops::node_type node = std::move(spare_ops_.back());
  spare_ops_.pop_back();
  Op& op = *node.mapped();
  Bytes signal = std::move(op.signal);  // for its room
  op = Op();
  op.signal = std::move(signal);
  op.number = node.key() = number;
  ops_.insert(ops_.end(), std::move(node));
  return op;
}

bool Link::release_held() {
  bool any = false;
  for (const std::uint64_t number : std::vector<std::uint64_t>(held_)) {
    const auto place = ops_.find(number);
    if (place == ops_.end()) continue;  // what another one's end has brought about
    const auto reached = place->second->after->reached();
    if (reached.ok() && !*reached) continue;
    any = true;
    std::erase(held_, number);
    --shared_->held;
    if (reached.ok()) {
      turns_.push_back(number);
      continue;
    }
    place->second->failure = reached.status();
    finish(place);
    if (!ready_) return true;
  }
  if (any) advance();
  return any;
}

bool Link::room_for_signal(const Lane& lane) const noexcept {
  return signals_sent_ - signals_taken_ < credits && free_sends_.size() > reserved_slots_ && lane.posted() < Lane::depth;
}

Status Link::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) [[unlikely]]
    return not_ready();
  if (head.size() + body.size() > max_signal) [[unlikely]]
    return too_large(head.size() + body.size());
  Lane* const lane = message_lane();
  if (lane == nullptr || lane->broken || !lane->again.empty() || !resend_.empty() || !waiting_signals_.empty() ||
      !room_for_signal(*lane)) {
    static const Status full(Code::would_block, "no credit of the peer for another signal");
    return full;
  }
  Batch batch;
  add_message(*lane, batch, {MessageKind::signal, 0, 0, consumed_}, 0, head, body);
  submit(*lane, batch);
  return ready_ ? Status() : failure_;
}

void Link::advance() {
  if (advancing_) return;
  const auto keep = shared_from_this();
  advancing_ = true;
  for (bool posted = true; posted && ready_ && !nothing_waits();) {
    posted = false;
    for (std::size_t i = 0; i < lanes_.size() && ready_; ++i) {
      Lane& lane = *lanes_[i];
      if (!lane.up() || lane.broken) continue;
      Batch batch;
      if (lane.state == Lane::State::live) {
        fill(lane, batch);
      } else if (lane.probe && !free_sends_.empty()) {  // what comes back says that it carries
        add_message(lane, batch, {MessageKind::credit, 0, 0, consumed_}, 0, {}, {});
        lane.probe = false;
      }
      posted = (batch.count != 0 && submit(lane, batch)) || posted;
    }
  }
  advancing_ = false;
}

// To be sent.
bool Link::nothing_waits() const noexcept {
  return turns_.empty() && waiting_signals_.empty() && resend_.empty() && redo_.empty() && !credit_due() &&
         std::ranges::none_of(lanes_, [](const auto& lane) {
           return lane->probe || !lane->again.empty() || !lane->settles.empty() || !lane->to_announce.empty();
         });
}

void Link::fill(Lane& lane, Batch& batch) {
  while (!lane.again.empty() && !batch.full()) {
    if (lane.again.front().kind != Record::Kind::message && !lane.room_for_records()) return;
    add(lane, batch, lane.again.front());
    lane.again.pop_front();
  }
  if (!lane.again.empty()) return;
  fill_messages(lane, batch);
  while (!lane.settles.empty() && !batch.full() && lane.room_for_records()) {
    add(lane, batch, lane.settles.front());
    lane.settles.pop_front();
  }
  while (!redo_.empty() && !batch.full() && lane.room_for_data()) {
    ops_.at(redo_.front().op)->lanes |= 1U << lane.index;
    add(lane, batch, redo_.front());
    redo_.pop_front();
  }
  fill_data(lane, batch);
}

void Link::fill_messages(Lane& lane, Batch& batch) {
  const auto room = [&] { return !free_sends_.empty() && lane.posted() < Lane::depth && !batch.full(); };
  while (!lane.to_announce.empty() && room()) add_announcements(lane, batch);
  const bool first = &lane == message_lane();
  while (first && !resend_.empty() && !batch.full() && lane.posted() < Lane::depth) {
    MessageHead head;
    static_cast<void>(decode_head({send_slot(resend_.front().slot), head_bytes}, head));
    head.consumed = consumed_;  // what it tells of the receiver's signals is of old
    encode_head(send_slot(resend_.front().slot), head);
    add(lane, batch, resend_.front());
    resend_.pop_front();
  }
  while (first && resend_.empty() && !waiting_signals_.empty() && !batch.full() && room_for_signal(lane)) {
    add_message(lane, batch, {MessageKind::signal, 0, 0, consumed_}, 0, waiting_signals_.front(), {});
    waiting_signals_.pop_front();
  }
  // A message of a signal tells it on the way; without one it takes a message of its own, before the peer has run out.
  if ((lane.probe || (first && credit_due())) && room()) {
    add_message(lane, batch, {MessageKind::credit, 0, 0, consumed_}, 0, {}, {});
    lane.probe = false;
  }
}

bool Link::takes(const Lane& lane, const Op& op) const {
  std::vector<LaneLoad> loads;
  std::size_t own = 0;
  for (const auto& each : lanes_) {
    if (each->state != Lane::State::live || each->broken) continue;
    if (each.get() == &lane) own = loads.size();
    loads.push_back(each->load(op.numa_node));
  }
  return takes_chunk(loads, own, std::min(op.left, lane.piece_bytes()), op.left);
}

void Link::fill_data(Lane& lane, Batch& batch) {
  const bool several = live_lanes() > 1;
  const bool first = first_live() == &lane;
  for (std::size_t i = 0; i < std::min(turns_.size(), max_begun) && !batch.full() && lane.room_for_data();) {
    const std::uint64_t number = turns_[i];
    Op& op = *ops_.at(number);
    if (several && !(op.bytes <= split_bytes ? first : takes(lane, op))) {
      ++i;
      continue;
    }
    turns_.erase(turns_.begin() + static_cast<std::ptrdiff_t>(i));
    fill_op(lane, batch, op);
    // Behind the others whose turn it is, not behind those that have not begun.
    if (!op.cursor.at_end())
      turns_.insert(turns_.begin() + static_cast<std::ptrdiff_t>(std::min(turns_.size(), max_begun - 1)), number);
  }
}

void Link::fill_op(Lane& lane, Batch& batch, Op& op) {
  op.begun = true;
  op.lanes |= 1U << lane.index;
  std::size_t budget = chunk_bytes;
  while (!op.cursor.at_end() && budget != 0 && !batch.full() && lane.room_for_data()) {
    Record one;
    one.kind = op.is_put ? Record::Kind::write : Record::Kind::read;
    one.op = op.number;
    one.piece = op.cursor.peek(std::min(budget, lane.piece_bytes()));
    one.bytes = one.piece.bytes;
    if (const auto immediate = one.bytes == op.left ? immediate_of(lane, batch, op) : std::nullopt) {
      one.ordinal = 1;
      one.immediate = *immediate;
      op.signal.clear();
    }
    add(lane, batch, one);
    op.cursor.advance(one.bytes);
    op.left -= one.bytes;
    ++op.under_way;
    budget -= one.bytes;
  }
  if (!op.cursor.at_end() || batch.full() || !may_follow(lane, op)) return;
  add_message(lane, batch, {MessageKind::signal, 0, 0, consumed_}, op.number, op.signal, {});
  op.signal.clear();
}

// Its signal may go right behind its bytes: they all went this way. Else step() sends it when they have arrived.
bool Link::may_follow(const Lane& lane, const Op& op) const noexcept {
  return !op.signal.empty() && !op.on_device && op.lanes == 1U << lane.index && &lane == message_lane() && resend_.empty() &&
         waiting_signals_.empty() && room_for_signal(lane);
}

// The immediate by which its signal goes with its last bytes. None: it does not.
std::optional<std::uint32_t> Link::immediate_of(Lane& lane, Batch& batch, const Op& op) {
  const auto parts = split_signal(op.signal);
  if (!parts || !may_follow(lane, op)) return std::nullopt;
  auto place = heads_told_.find(parts->head);
  if (!place) {
    if (batch.count + 2 > Batch::size || !heads_seen_.again(parts->head)) return std::nullopt;
    place = heads_told_.add(parts->head);
    if (!place) return std::nullopt;
    add_message(lane, batch, {MessageKind::signal_head, 0, 0, consumed_}, 0, parts->head, {});
    if (!room_for_signal(lane)) return std::nullopt;
  }
  return SignalHeads::immediate(*place, parts->number);
}

void Link::add_message(Lane& lane, Batch& batch, const MessageHead& head, std::uint64_t op, ByteSpan first, ByteSpan second) {
  Record one;
  one.op = op;
  one.slot = free_sends_.back();
  free_sends_.pop_back();
  one.bytes = head_bytes + first.size() + second.size();
  one.ordinal = counts_as_signal(head.kind) ? 1 : 0;
  std::byte* out = send_slot(one.slot);
  encode_head(out, head);
  if (!first.empty()) std::memcpy(out + head_bytes, first.data(), first.size());
  if (!second.empty()) std::memcpy(out + head_bytes + first.size(), second.data(), second.size());
  consumed_told_ = consumed_;
  add(lane, batch, one);
}

void Link::add(Lane& lane, Batch& batch, const Record& one) {
  ibv_send_wr& work = batch.work[batch.count];
  ibv_sge& part = batch.parts[batch.count];
  ++batch.count;
  work = {};
  work.wr_id = lane.id | lane.next;
  work.sg_list = &part;
  work.num_sge = 1;
  part.length = static_cast<std::uint32_t>(one.bytes);
  bool from_device = false;
  Record posted = one;
  if (one.ordinal != 0) posted.ordinal = ++signals_sent_;
  if (one.kind == Record::Kind::message) {
    part.addr = reinterpret_cast<std::uintptr_t>(send_slot(one.slot));
    part.lkey = lane.memory_key;
    work.opcode = IBV_WR_SEND;
  } else {
    const Run& run = *one.piece.run;
    const VerbsLocalRegion& local = local_of(run);
    const VerbsRemoteRegion& remote = remote_of(run);
    from_device = local.on_device();
    part.addr = reinterpret_cast<std::uintptr_t>(local.data() + one.piece.local_offset);
    part.lkey = local.local_key(lane.nic);
    work.wr.rdma.remote_addr = remote.address() + one.piece.remote_offset;
    work.wr.rdma.rkey = remote.key(lane.peer.port);
    // A device's memory is asked for a byte by the card that has filled it. The answer pushes what came before ahead of itself, as
    // PCI orders it, so that afterwards whatever runs on the device sees that.
    const bool is_put = ops_.at(one.op)->is_put;
    const bool settle = one.kind == Record::Kind::settle;
    work.opcode = is_put != settle ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    if (one.ordinal != 0) {
      work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      work.imm_data = htonl(one.immediate);
    }
    if (settle && is_put) {
      part.addr = reinterpret_cast<std::uintptr_t>(sink_page_.get() + scratch_offset);
      part.lkey = lane.sink_key;
      from_device = false;
    } else if (settle) {
      work.wr.rdma.remote_addr = peer_sink_;
      work.wr.rdma.rkey = lane.peer.sink;
    }
  }
  // Inline, the CPU takes the bytes, which those of a device are not for.
  if (work.opcode != IBV_WR_RDMA_READ && !from_device && one.bytes <= lane.outbound->inline_bytes())
    work.send_flags = IBV_SEND_INLINE;
  batch.silent += one.bytes;
  if (batch.silent >= lane.piece_bytes()) {  // so that room is seen before all of a batch has gone
    work.send_flags |= IBV_SEND_SIGNALED;
    batch.silent = 0;
  }
  lane.note_posted(posted);
}

// False: it did not go; the lane has failed, perhaps the link.
bool Link::submit(Lane& lane, Batch& batch) {
  for (unsigned i = 0; i + 1 < batch.count; ++i) batch.work[i].next = &batch.work[i + 1];
  batch.work[batch.count - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(lane.outbound->handle(), batch.work.data(), &refused);
  if (error == 0) {
    if (watch_timer_ == 0) watch();
    return true;
  }
  lose(lane, Status(Code::transport, lane.nic.name() + " refused a work request", error));
  return false;
}

}  // namespace hmc::verbs
