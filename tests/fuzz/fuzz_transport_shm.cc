// What the shm transport reads out of control messages and out of memory that its peer writes. The first byte chooses: address,
// region, a signal ring or a bulk ring whose beginning is the input.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "transport/shm/address.h"
#include "transport/shm/bulk_ring.h"
#include "transport/shm/region.h"
#include "transport/shm/signal_ring.h"

namespace {

using namespace hmc;
using namespace hmc::shm;

void check(bool holds) {
  if (!holds) std::abort();
}

void address(ByteSpan in) {
  const auto first = decode_address(in);
  if (!first.ok()) return;
  check(first->sizes.valid() && first->sizes.total() <= 2 * max_ring_bytes + control_bytes);
  Bytes again;
  encode_address(*first, again);
  check(std::ranges::equal(again, in));
}

void region(ByteSpan in) {
  const auto first = decode_region(in);
  if (!first.ok()) return;
  check(first->address + first->bytes >= first->address && first->file_offset + first->bytes >= first->bytes);
  Bytes again;
  encode_region(*first, again);
  check(std::ranges::equal(again, in));
}

struct alignas(line_bytes) Line {
  std::byte bytes[line_bytes];
};

// Tags are made right at every line, so that all records are read.
void signals(ByteSpan in) {
  constexpr std::size_t bytes = min_signal_bytes;
  constexpr std::uint64_t key = 3;
  static std::vector<Line> ring(bytes / line_bytes);
  std::atomic<std::uint64_t> head{0};
  std::memset(ring.data(), 0, bytes);
  std::memcpy(ring.data(), in.data(), std::min(in.size(), bytes));
  for (std::size_t i = 0; i < ring.size(); ++i) {
    reinterpret_cast<RecordHeader*>(ring[i].bytes)->tag.store(record_tag(key, i * line_bytes));
  }
  SignalConsumer consumer(ring.data()->bytes, bytes, key, &head);
  std::size_t taken = 0;
  for (std::size_t i = 0; i <= ring.size(); ++i) {
    ByteSpan signal;
    if (consumer.find(signal) != SignalConsumer::Next::signal) return;
    check(signal.size() <= max_signal);
    const auto* const end = reinterpret_cast<const std::byte*>(ring.data() + ring.size());
    check(signal.data() + signal.size() <= end);
    taken += record_bytes(signal.size());
    check(taken <= bytes);
    consumer.pass();
    consumer.publish();
  }
}

void chunks(ByteSpan in) {
  static ChannelMemory channel = ChannelMemory::create(sizes_for(0)).value();
  channel.control().bulk_tail.store(0);
  channel.control().bulk_head.store(0);
  const std::size_t each = in.size() / slot_count;
  for (std::size_t i = 0; i < slot_count; ++i) {
    std::memset(channel.slot(i), 0, slot_header_bytes);
    if (each != 0) std::memcpy(channel.slot(i), in.data() + i * each, std::min(each, channel.sizes().slot_bytes));
  }
  channel.control().bulk_tail.store(slot_count);
  BulkConsumer consumer(channel);
  for (std::size_t i = 0; i <= slot_count; ++i) {
    SlotInfo info;
    bool skipped = false;
    if (consumer.take(info, skipped) != BulkConsumer::Next::slot) return;
    check(info.bytes <= channel.sizes().slot_payload() && info.kind <= SlotKind::get_stop);
    check(info.kind != SlotKind::put || info.pieces <= max_put_pieces);
    check(info.kind != SlotKind::get_request || (info.pieces != 0 && info.pieces <= channel.sizes().max_request_pieces()));
    consumer.finish(Code::ok);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 4) {
    case 0:
      address(in);
      break;
    case 1:
      region(in);
      break;
    case 2:
      signals(in);
      break;
    default:
      chunks(in);
      break;
  }
  return 0;
}
