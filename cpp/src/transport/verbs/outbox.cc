#include "transport/verbs/outbox.h"

#include <cstring>

namespace hmc::verbs {

void Outbox::add(Rail& rail, Batch& batch, Record one) {
  if (one.ordinal != 0) one.ordinal = credit.spend();
  rail.add(batch, one, memory);
}

void Outbox::add_message(Rail& rail, Batch& batch, MessageHead head, std::uint64_t op, ByteSpan first, ByteSpan second) {
  Record one;
  one.op = op;
  one.slot = memory.free_sends.back();
  memory.free_sends.pop_back();
  one.bytes = head_bytes + first.size() + second.size();
  one.ordinal = counts_as_signal(head.kind) ? 1 : 0;
  std::byte* out = memory.send_slot(one.slot);
  head.consumed = credit.tell();
  encode_head(out, head);
  if (!first.empty()) std::memcpy(out + head_bytes, first.data(), first.size());
  if (!second.empty()) std::memcpy(out + head_bytes + first.size(), second.data(), second.size());
  add(rail, batch, one);
}

bool Outbox::fill(Rail& rail, Batch& batch) {
  const auto post = [&](std::deque<Record>& records) {
    while (!records.empty() && !batch.full()) {
      if (records.front().kind != Record::Kind::message && !rail.out.room_for_records()) return;
      add(rail, batch, records.front());
      records.pop_front();
    }
  };
  post(rail.out.again);
  if (!rail.out.again.empty()) return false;
  fill_messages(rail, batch);
  post(rail.out.settles);
  return true;
}

void Outbox::fill_messages(Rail& rail, Batch& batch) {
  const auto room = [&] { return !memory.free_sends.empty() && !rail.out.full() && !batch.full(); };
  while (!rail.out.to_announce.empty() && room()) announce(rail, batch);
  const bool first = &rail == rails_.for_messages();
  while (first && !resend.empty() && !batch.full() && !rail.out.full()) {
    MessageHead head;
    static_cast<void>(decode_head({memory.send_slot(resend.front().slot), head_bytes}, head));
    head.consumed = credit.tell();  // what it tells of the receiver's signals is of old
    encode_head(memory.send_slot(resend.front().slot), head);
    add(rail, batch, resend.front());
    resend.pop_front();
  }
  while (first && resend.empty() && !waiting_.empty() && !batch.full() && room_for_signal(rail)) {
    add_message(rail, batch, {MessageKind::signal}, 0, waiting_.pop().body, {});
  }
  // A message of a signal tells it on the way; without one it takes a message of its own, before the peer has run out.
  if ((rail.out.probe || (first && credit.due())) && room()) fill_probe(rail, batch);
}

void Outbox::fill_probe(Rail& rail, Batch& batch) {
  add_message(rail, batch, {MessageKind::credit});
  rail.out.probe = false;
}

void Outbox::announce(Rail& rail, Batch& batch) {
  const Rail& told = rails_[rail.out.to_announce.back()];
  rail.out.to_announce.pop_back();
  const auto index = static_cast<std::uint8_t>(told.index());
  if (told.up() && !told.live()) {
    add_message(rail, batch, {MessageKind::rail_up, index, told.life}, 0, encode_offer({told.rank, told.own}), {});
  } else if (told.state == Rail::State::left || told.state == Rail::State::gone) {
    add_message(rail, batch, {MessageKind::rail_down, index, told.life});
  }
}

std::optional<std::uint32_t> Outbox::immediate(Rail& rail, Batch& batch, ByteSpan signal) {
  const auto parts = split_signal(signal);
  if (!parts) return std::nullopt;
  auto place = heads.find(parts->head);
  if (!place) {
    if (batch.count + 2 > Batch::size || !seen_.again(parts->head)) return std::nullopt;
    place = heads.add(parts->head);
    if (!place) return std::nullopt;
    add_message(rail, batch, {MessageKind::signal_head}, 0, parts->head, {});
    if (!room_for_signal(rail)) return std::nullopt;
  }
  return SignalHeads::immediate(*place, parts->number);
}

}  // namespace hmc::verbs
