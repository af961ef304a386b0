#include "comm/wire/messages.h"

#include <cstring>

#include "base/text.h"
#include "base/wire.h"

namespace hmc::messaging {
namespace {

Bytes begin(Kind kind) { return Bytes{static_cast<std::byte>(kind)}; }

WireReader past_kind(ByteSpan signal) { return WireReader(signal.empty() ? signal : signal.subspan(1)); }

Bytes copied(ByteSpan bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

void write_head(std::array<std::byte, head_bytes>& out, Kind kind, const Head& head) noexcept {
  const std::uint32_t first = static_cast<std::uint32_t>(kind) | head.call << 8;
  std::memcpy(out.data(), &first, 4);
  std::memcpy(out.data() + 4, &head.envelope.scope, 4);
  std::memcpy(out.data() + 8, &head.envelope.src, 4);
  std::memcpy(out.data() + 12, &head.envelope.dst, 4);
  std::memcpy(out.data() + 16, &head.tag, 8);
}

std::optional<Kind> kind_of(ByteSpan signal) noexcept {
  if (signal.empty()) return std::nullopt;
  const std::uint8_t kind = signal_kind(signal[0]);
  if (kind < static_cast<std::uint8_t>(Kind::eager) || kind > static_cast<std::uint8_t>(Kind::halt)) return std::nullopt;
  return static_cast<Kind>(kind);
}

std::optional<Head> decode_head(ByteSpan signal) noexcept {
  if (signal.size() < head_bytes) return std::nullopt;
  Head head;
  std::memcpy(&head.envelope.scope, signal.data() + 4, 4);
  std::memcpy(&head.envelope.src, signal.data() + 8, 4);
  std::memcpy(&head.envelope.dst, signal.data() + 12, 4);
  std::memcpy(&head.tag, signal.data() + 16, 8);
  std::memcpy(&head.call, signal.data(), 4);
  head.call >>= 8;
  if (head.tag < 0) return std::nullopt;
  return head;
}

Bytes encode(const Announce& announce) {
  std::array<std::byte, head_bytes> head;
  write_head(head, Kind::announce, announce.head);
  Bytes out(head.begin(), head.end());
  WireWriter(out).u64(announce.bytes).u64(announce.sender_op).text(announce.transport).text(announce.device).bytes(announce.region);
  return out;
}

std::optional<Announce> decode_announce(ByteSpan signal) {
  const auto head = decode_head(signal);
  if (!head) return std::nullopt;
  WireReader in(signal.subspan(head_bytes));
  Announce announce;
  announce.head = *head;
  announce.bytes = in.u64();
  announce.sender_op = in.u64();
  announce.transport = in.text(64);
  announce.device = in.text(64);
  announce.region = copied(in.bytes(max_region_bytes));
  if (!in.finish()) return std::nullopt;
  return announce;
}

Bytes encode(const Answer& answer) {
  Bytes out = begin(Kind::answer);
  WireWriter(out)
      .u64(answer.sender_op)
      .u64(answer.receiver_op)
      .u64(answer.lower)
      .text(answer.transport)
      .text(answer.device)
      .bytes(answer.region);
  return out;
}

std::optional<Answer> decode_answer(ByteSpan signal) {
  WireReader in = past_kind(signal);
  Answer answer;
  answer.sender_op = in.u64();
  answer.receiver_op = in.u64();
  answer.lower = in.u64();
  answer.transport = in.text(64);
  answer.device = in.text(64);
  answer.region = copied(in.bytes(max_region_bytes));
  if (!in.finish()) return std::nullopt;
  return answer;
}

Bytes encode(const Finish& finish, Kind kind) {
  Bytes out = begin(kind);
  WireWriter(out).u64(finish.op).u32(static_cast<std::uint32_t>(finish.code)).text(cut_utf8(finish.message, max_text_bytes));
  return out;
}

std::optional<Finish> decode_finish(ByteSpan signal) {
  WireReader in = past_kind(signal);
  Finish finish;
  finish.op = in.u64();
  const std::uint32_t code = in.u32();
  finish.message = in.text(max_text_bytes);
  if (!in.finish() || code > static_cast<std::uint32_t>(Code::protocol)) return std::nullopt;
  finish.code = static_cast<Code>(code);
  return finish;
}

Bytes encode(const Withdraw& withdraw) {
  Bytes out = begin(Kind::withdraw);
  WireWriter(out).u64(withdraw.sender_op).u8(withdraw.leaving ? 1 : 0);
  return out;
}

std::optional<Withdraw> decode_withdraw(ByteSpan signal) {
  WireReader in = past_kind(signal);
  Withdraw withdraw;
  withdraw.sender_op = in.u64();
  const std::uint8_t leaving = in.u8();
  if (!in.finish() || leaving > 1) return std::nullopt;
  withdraw.leaving = leaving != 0;
  return withdraw;
}

Bytes encode(const Halt& halt) {
  Bytes out = begin(Kind::halt);
  WireWriter(out).u64(halt.op).u64(halt.from_op).u8(static_cast<std::uint8_t>(halt.what));
  return out;
}

std::optional<Halt> decode_halt(ByteSpan signal) {
  WireReader in = past_kind(signal);
  Halt halt;
  halt.op = in.u64();
  halt.from_op = in.u64();
  const std::uint8_t what = in.u8();
  if (!in.finish() || what > static_cast<std::uint8_t>(Halt::What::ended)) return std::nullopt;
  halt.what = static_cast<Halt::What>(what);
  return halt;
}

Bytes encode(const Credit& credit) {
  Bytes out = begin(Kind::credit);
  WireWriter(out).u64(credit.payload).u64(credit.heads);
  return out;
}

std::optional<Credit> decode_credit(ByteSpan signal) {
  WireReader in = past_kind(signal);
  const Credit credit{in.u64(), in.u64()};
  if (!in.finish()) return std::nullopt;
  return credit;
}

}  // namespace hmc::messaging
