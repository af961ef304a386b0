// Notification signals between two peers.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "comm/connection/signals.h"
#include "hmc/peer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto signal = hmc::decode_notify_signal(std::as_bytes(std::span(data, size)));
  if (signal && signal->payload.size() > hmc::max_notify_payload) std::abort();
  return 0;
}
