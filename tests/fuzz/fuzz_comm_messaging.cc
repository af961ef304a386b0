// Signals of two-sided messages. What decodes must keep its limits and encode to the same bytes again.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "comm/messaging_wire.h"

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
  const auto same = [&](const Bytes& again) { check(std::ranges::equal(again, in)); };
  const auto kind = kind_of(in);
  // None relies on the kind having been looked at.
  const auto head = decode_head(in);
  const auto announce = decode_announce(in);
  const auto answer = decode_answer(in);
  const auto finish = decode_finish(in);
  const auto withdraw = decode_withdraw(in);
  const auto credit = decode_credit(in);
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
      if (announce) same(encode(*announce));
      break;
    case Kind::answer:
      if (answer) same(encode(*answer));
      break;
    case Kind::finish:
    case Kind::refuse:
      if (finish) same(encode(*finish, *kind));
      break;
    case Kind::withdraw:
      if (withdraw) same(encode_withdraw(*withdraw));
      break;
    case Kind::credit:
      if (credit) same(encode(*credit));
      break;
  }
  return 0;
}
