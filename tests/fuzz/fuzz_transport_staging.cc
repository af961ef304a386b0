// What the transports of device memory read from a peer: staging's messages, exported regions, and what both say of their carriers.
// The first byte chooses the decoder.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "round_trip.h"
#include "transport/ipc/region.h"
#include "transport/kit/carrier.h"
#include "transport/kit/served_regions.h"
#include "transport/staging/messages.h"

namespace {

using namespace hmc;

void check(bool holds) {
  if (!holds) std::abort();
}

void message(ByteSpan in) {
  check(round_trips(in, staging::decode, [](const auto& m) { return staging::encode(m); }));
}

Blob blob_of(ByteSpan in) {
  Blob blob;
  blob.bytes.assign(in.begin(), in.end());
  return blob;
}

void regions(ByteSpan in) {
  static_cast<void>(ServedRemoteRegion::import(blob_of(in)));
  static_cast<void>(ipc::ImportedRegion::import(blob_of(in), {}));
}

void carriers(ByteSpan in) {
  PeerDomain peer;
  peer.domain = in;
  check(Carriers({}).choose(peer).transport == nullptr);
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
      regions(in);
      break;
    default:
      carriers(in);
      break;
  }
  return 0;
}
