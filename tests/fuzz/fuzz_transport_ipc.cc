// What ipc reads from a peer: its messages, announcements of memory, and regions. The first byte chooses the decoder.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "round_trip.h"
#include "transport/ipc/announced.h"
#include "transport/ipc/messages.h"
#include "transport/ipc/region.h"

namespace {

using namespace hmc;

void check(bool holds) {
  if (!holds) std::abort();
}

void message(ByteSpan in) {
  const auto first = ipc::decode(in);
  if (!first) return;
  check(round_trips(in, ipc::decode, [](const auto& m) { return ipc::encode(m); }));
  const auto* ask = std::get_if<ipc::Ask>(&*first);
  if (ask == nullptr) return;
  check(ask->number < ipc::max_asks && ask->block != 0 && ask->memory_offsets.size() == ask->region_offsets.size());
  check(ipc::Ask::encoded(ask->memory_offsets.size(), ask->signal.size()) == in.size());
}

void announcement(ByteSpan in) {
  const auto first = ipc::decode_announcement(in);
  if (!first) return;
  check(round_trips(in, ipc::decode_announcement, [](const auto& m) { return ipc::encode(m); }));
  const ipc::AnnouncedMemory memory(first->exported, {});
}

void region(ByteSpan in) {
  Blob blob;
  blob.bytes.assign(in.begin(), in.end());
  static_cast<void>(ipc::ImportedRegion::import(blob, {}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 3) {
    case 0:
      message(in);
      break;
    case 1:
      announcement(in);
      break;
    default:
      region(in);
      break;
  }
  return 0;
}
