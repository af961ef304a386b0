#include "transport/verbs/rail.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/random.h"
#include "transport/verbs/region.h"

namespace hmc::verbs {
namespace {

constexpr unsigned wanted_inline = 220;  // what fits into a few cache lines of a work request on common cards
constexpr std::uint32_t generation_stride = 0x3A5F1D;
constexpr double usual_rate = 1e9;   // where the port does not say
constexpr unsigned life_shift = 16;  // in the number of a receive
constexpr std::uint64_t life_mask = 0xFFF, slot_mask = 0xFFFF;

// Of the first packet after a queue pair has started over `generation` times. Far from where the last one can have been.
std::uint32_t sequence_of(std::uint32_t first, std::uint32_t generation) noexcept {
  return (first + generation * generation_stride) & number_mask;
}

}  // namespace

SendQueue::SendQueue(const Nic& nic) noexcept
    : max_message_(nic.max_message()), rate_(nic.info().rate != 0 ? static_cast<double>(nic.info().rate) : usual_rate) {}

std::size_t SendQueue::piece_bytes() const noexcept {
  constexpr std::size_t least = 64 << 10;
  return std::min(std::max(window_of(rate_.rate()) / 4, least), max_message_);
}

bool SendQueue::holds_signal() const noexcept {
  const auto carries = [](const Record& one) { return one.ordinal != 0; };
  for (std::uint32_t at = oldest; at != next; at = (at + 1) & sequence_mask) {
    if (carries(records_[at % depth])) return true;
  }
  return std::ranges::any_of(again, carries);
}

Record SendQueue::retire(bool executed) {
  const Record one = record(oldest);
  oldest = (oldest + 1) & sequence_mask;
  if (one.kind == Record::Kind::message) return one;
  --data_posted_;
  executed ? rate_.completed(one.bytes) : rate_.discarded(one.bytes);
  return one;
}

void SendQueue::note_posted(const Record& one) {
  record(next) = one;
  next = (next + 1) & sequence_mask;
  if (one.kind == Record::Kind::message) return;
  ++data_posted_;
  rate_.posted(one.bytes);
  if (one.bytes >= RateEstimate::counted_piece) passed_over_ = 0;
}

Result<std::unique_ptr<Rail>> Rail::create(Nic& nic, std::uint64_t id, unsigned receives) {
  auto rail = std::unique_ptr<Rail>(new Rail(nic, id));
  // A receive and a send at the least: some devices know no queue of none.
  HMC_ASSIGN(rail->out.pair, QueuePair::create(nic, QueuePair::Role::requester, SendQueue::depth, 1, wanted_inline));
  HMC_ASSIGN(rail->in.pair, QueuePair::create(nic, QueuePair::Role::target, 1, receives, 0));
  rail->own.port = nic.info();
  rail->own.outbound = rail->out.pair->number();
  rail->own.inbound = rail->in.pair->number();
  rail->own.sequence = static_cast<std::uint32_t>(random_u64()) & number_mask;
  return rail;
}

Result<std::unique_ptr<Rail>> Rail::renew(const Rail& gone, std::uint16_t life, std::uint32_t rank, unsigned receives) {
  HMC_ASSIGN(auto rail, create(gone.nic, gone.id, receives));
  rail->state = State::offered;
  rail->joined_at.reset();
  rail->peer = gone.peer;
  rail->keys = gone.keys;
  rail->own.sink = gone.own.sink;
  rail->out.oldest = rail->out.next = (gone.out.next + SendQueue::depth) & SendQueue::sequence_mask;
  rail->attempts = gone.attempts;
  rail->rank = rank;
  rail->life = life;
  return rail;
}

void Rail::add(Batch& batch, const Record& one, const MessageMemory& memory) {
  ibv_send_wr& work = batch.work[batch.count];
  ibv_sge& part = batch.parts[batch.count];
  ++batch.count;
  work = {};
  work.wr_id = id | out.next;
  work.sg_list = &part;
  work.num_sge = 1;
  part.length = static_cast<std::uint32_t>(one.bytes);
  bool from_device = false;
  if (one.kind == Record::Kind::message) {
    part.addr = reinterpret_cast<std::uintptr_t>(memory.send_slot(one.slot));
    part.lkey = keys.memory;
    work.opcode = IBV_WR_SEND;
  } else {
    const VerbsLocalRegion& local = local_of(*one.piece.run);
    const VerbsRemoteRegion& remote = remote_of(*one.piece.run);
    from_device = local.on_device();
    part.addr = reinterpret_cast<std::uintptr_t>(local.data() + one.piece.local_offset);
    part.lkey = local.local_key(nic);
    work.wr.rdma.remote_addr = remote.address() + one.piece.remote_offset;
    work.wr.rdma.rkey = remote.key(peer.port);
    const bool reads = one.kind == Record::Kind::read || one.kind == Record::Kind::settle_put;
    work.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    if (one.ordinal != 0) {
      work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      work.imm_data = htonl(one.immediate);
    }
    // A device's memory is asked for a byte by the card that has filled it. The answer pushes what came before ahead of itself, as
    // PCI orders it, so that afterwards whatever runs on the device sees that.
    if (one.kind == Record::Kind::settle_put) {
      part.addr = memory.scratch();
      part.lkey = keys.sink;
    } else if (one.kind == Record::Kind::settle_get) {
      work.wr.rdma.remote_addr = memory.peer_sink;
      work.wr.rdma.rkey = peer.sink;
    }
  }
  // Inline, the CPU takes the bytes, which those of a device are not for.
  if (work.opcode != IBV_WR_RDMA_READ && !from_device && one.bytes <= out.pair->inline_bytes()) work.send_flags = IBV_SEND_INLINE;
  batch.silent += one.bytes;
  if (batch.silent >= out.piece_bytes()) {  // so that room is seen before all of a batch has gone
    work.send_flags |= IBV_SEND_SIGNALED;
    batch.silent = 0;
  }
  out.note_posted(one);
}

Status Rail::submit(Batch& batch) {
  for (unsigned i = 0; i + 1 < batch.count; ++i) batch.work[i].next = &batch.work[i + 1];
  batch.work[batch.count - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(out.pair->handle(), batch.work.data(), &refused);
  return error == 0 ? Status() : Status(Code::transport, nic.name() + " refused a work request", error);
}

Status Rail::post_receive(unsigned slot, const MessageMemory& memory) {
  ibv_sge part{reinterpret_cast<std::uintptr_t>(memory.receive_slot(slot)), slot_bytes, keys.memory};
  ibv_recv_wr work{};
  work.wr_id = id | receive_bit | (life & life_mask) << life_shift | slot;
  work.sg_list = &part;
  work.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  if (const int error = ibv_post_recv(in.pair->handle(), &work, &refused); error != 0) {
    return Status(Code::transport, nic.name() + " refused a receive", error);
  }
  ++in.posted;
  return {};
}

std::optional<unsigned> Rail::slot_of(const ibv_wc& completion) const noexcept {
  if (!in.pair || (completion.wr_id >> life_shift & life_mask) != (life & life_mask)) return std::nullopt;
  return static_cast<unsigned>(completion.wr_id & slot_mask);
}

Status Rail::connect_outbound(const Patience& patience) {
  return out.pair->connect(peer.port, peer.inbound, sequence_of(own.sequence, out.generation), patience);
}

Status Rail::connect_inbound(const Patience& patience) {
  return in.pair->connect(peer.port, peer.outbound, sequence_of(peer.sequence, in.generation), patience);
}

Status Rail::connect(const Patience& patience) {
  HMC_TRY(connect_inbound(patience));
  return connect_outbound(patience);
}

void Rail::stop() {
  out.pair.reset();
  in.pair.reset();
  out.again.clear();
  out.settles.clear();
}

std::size_t Rails::live() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(all_, [](const auto& rail) { return rail->live(); }));
}

Rail* Rails::first_live() const noexcept {
  Rail* first = nullptr;
  for (const auto& rail : all_) {
    if (rail->live() && (first == nullptr || rail->rank < first->rank)) first = rail.get();
  }
  return first;
}

// The first that has not gone: on the next one the peer may not be ready for signals before.
Rail* Rails::for_messages() const noexcept {
  Rail* const first = first_live();
  const auto before = [&](const auto& rail) {
    return (rail->state == Rail::State::draining || rail->state == Rail::State::left) && rail->rank < first->rank;
  };
  return first == nullptr || std::ranges::any_of(all_, before) ? nullptr : first;
}

void Rails::announce(const Rail& rail) {
  for (const auto& other : all_) {
    if (other->live()) other->out.to_announce.push_back(static_cast<std::uint8_t>(rail.index()));
  }
}

bool Rails::takes(const Rail& rail, int numa_node, std::size_t left) const {
  std::array<RailLoad, max_rails> loads;
  std::size_t count = 0, own = 0;
  for (const auto& each : all_) {
    if (!each->live() || each->out.broken) continue;
    if (each.get() == &rail) own = count;
    loads[count++] = each->load(numa_node);
  }
  return takes_chunk(std::span(loads).first(count), own, std::min(left, rail.out.piece_bytes()), left);
}

}  // namespace hmc::verbs
