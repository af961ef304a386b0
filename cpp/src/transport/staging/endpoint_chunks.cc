// How chunks move: load a slot, send it, learn that the peer is done with it, and for a get unload it.
#include <algorithm>
#include <utility>

#include "transport/staging/endpoint.h"

namespace hmc::staging {

// Gives free slots to the operations, oldest first. Where memory for some is refused, the others serve all; an operation fails
// where there is no slot at all. True if any began or failed.
bool StagingEndpoint::begin_chunks() {
  if (!can_send()) return false;
  bool began = false;
  auto op = operations_.all().begin();
  const auto end = operations_.all().end();
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i]->available()) continue;
    while (op != end && op->second->handed_over()) ++op;
    if (op == end) break;
    Status reserved = ring_->reserve(i);
    if (!reserved.ok() && ring_->usable()) continue;
    if (reserved.ok()) {
      begin_chunk(i, *op->second);
    } else {
      op->second->failure = std::move(reserved);
    }
    began = true;
  }
  return began;
}

void StagingEndpoint::begin_chunk(std::uint32_t number, Op& op) {
  Slot& slot = *slots_[number];
  std::size_t room = geometry_.chunk_bytes;
  std::size_t entries = 0;
  while (room != 0 && entries < max_entries && !op.cursor.at_end()) {
    const RunPiece piece = op.cursor.peek(room);
    const auto& remote = static_cast<const ServedRemoteRegion&>(*piece.run->remote);
    slot.copies.add(piece.run->local->view().span, piece.local_offset, piece.bytes, nullptr);
    ring_->write_entry(number, entries++, {remote.id(), piece.remote_offset, piece.bytes});
    room -= piece.bytes;
    op.cursor.advance(piece.bytes);
  }
  op.started = true;
  ++op.in_flight;
  slot.op = &op;
  const std::size_t bytes = slot.copies.bytes();
  slot.message = encode(Chunk{op.is_put, number, static_cast<std::uint32_t>(entries), bytes});
  slot.parcel.reset();
  if (!own_shared_) {
    const std::uint64_t start = ring_->slot_offset(number);
    if (op.is_put) slot.parcel.carry(*ring_region_, *peer_mirror_, start, bytes);
    slot.parcel.carry(*ring_region_, *peer_mirror_, start + geometry_.chunk_bytes, entries * entry_bytes);
  }
  for (const Device& device : slot.copies.devices()) ring_->pin_for(device, number);
  slot.state = op.is_put ? State::loading : State::loaded;
  if (op.is_put) slot.copies.start(ring_->payload(number), true, op.after);
  advance(number);
}

// True if the slot got on.
bool StagingEndpoint::advance(std::uint32_t number) {
  Slot& slot = *slots_[number];
  switch (slot.state) {
    case State::free:
    case State::sent:
      return false;
    case State::loading:
      if (!slot.copies.poll()) return false;
      if (const Status loaded = slot.copies.outcome(); !loaded.ok()) {
        slot.op->failure = loaded;
        slot_over(slot);
        return true;
      }
      slot.state = State::loaded;
      [[fallthrough]];
    case State::loaded: {
      const Status sent = slot.parcel.send(carrier(), slot.message);
      if (sent.code() == Code::would_block) return false;
      if (sent.ok()) {
        slot.state = State::sent;
      } else {
        slot.op->failure = sent;
        slot_over(slot);
      }
      return true;
    }
    case State::unloading:
      if (!slot.copies.poll()) return false;
      if (const Status unloaded = slot.copies.outcome(); !unloaded.ok()) {
        slot.op->failure = unloaded;
      } else {
        slot.op->moved += slot.copies.bytes();
      }
      slot_over(slot);
      return true;
  }
  return false;
}

void StagingEndpoint::slot_over(Slot& slot) {
  --slot.op->in_flight;
  slot.op = nullptr;
  slot.copies.clear();
  slot.state = State::free;
}

Status StagingEndpoint::on_finished(const Finished& finished) {
  if (finished.slot >= slots_.size() || slots_[finished.slot]->state != State::sent) {
    return Status(Code::protocol, "the peer ended a chunk that was not sent");
  }
  Slot& slot = *slots_[finished.slot];
  if (finished.code != Code::ok) {
    if (slot.op->failure.ok()) slot.op->failure = Status(finished.code, "at the peer: " + finished.message);
    slot_over(slot);
  } else if (slot.op->is_put) {
    slot.op->moved += slot.copies.bytes();
    slot_over(slot);
  } else {
    // The bytes are in this side's ring: shared, or carried there before the message.
    slot.state = State::unloading;
    slot.copies.start(ring_->payload(finished.slot), false, slot.op->after);
  }
  return {};
}

Status StagingEndpoint::on_message(ByteSpan bytes) {
  const auto message = decode(bytes);
  if (!message) return Status(Code::protocol, "the peer sent a malformed message of staging");
  if (const auto* rings = std::get_if<Rings>(&*message)) return on_rings(*rings);
  if (const auto* finished = std::get_if<Finished>(&*message)) return on_finished(*finished);
  if (server_.on_chunk(std::get<Chunk>(*message))) return {};
  return Status(Code::protocol, "the peer sent a chunk that cannot be");
}

}  // namespace hmc::staging
