// Signals of two-sided messages. What decodes must keep its limits and encode to the same bytes again.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "comm/wire/messages.h"
#include "round_trip.h"

namespace {

using namespace hmc;
using namespace hmc::messaging;

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes plain(size);
  std::ranges::copy(std::as_bytes(std::span(data, size)), plain.begin());
  if (size != 0) plain[0] &= ~std::byte{attached_bit};  // which tells nothing of the content
  const ByteSpan in = plain;
  const auto same = [&](auto decode, auto encode_it) { check(round_trips(in, decode, encode_it)); };
  const auto plainly = [](const auto& m) { return encode(m); };
  const auto kind = kind_of(in);
  // None relies on the kind having been looked at.
  const auto head = decode_head(in);
  const auto announce = decode_announce(in);
  const auto answer = decode_answer(in);
  const auto finish = decode_finish(in);
  static_cast<void>(decode_withdraw(in));
  static_cast<void>(decode_halt(in));
  static_cast<void>(decode_credit(in));
  if (head) check(size >= head_bytes && head->tag >= 0);
  if (announce)
    check(announce->region.size() <= max_region_bytes && announce->transport.size() <= 64 && announce->device.size() <= 64);
  if (answer) check(answer->region.size() <= max_region_bytes);
  if (finish) check(finish->message.size() <= max_text_bytes && finish->code <= Code::protocol);
  if (!kind) return 0;
  switch (*kind) {
    case Kind::eager:
      if (head) {
        std::array<std::byte, head_bytes> again{};
        write_head(again, Kind::eager, *head);
        check(std::ranges::equal(again, in.first(head_bytes)));
      }
      break;
    case Kind::announce:
      same(decode_announce, plainly);
      break;
    case Kind::answer:
      same(decode_answer, plainly);
      break;
    case Kind::finish:
    case Kind::refuse:
      same(decode_finish, [&](const auto& m) { return encode(m, *kind); });
      break;
    case Kind::withdraw:
      same(decode_withdraw, plainly);
      break;
    case Kind::halt:
      same(decode_halt, plainly);
      break;
    case Kind::credit:
      same(decode_credit, plainly);
      break;
  }
  return 0;
}
