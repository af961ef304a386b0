// What a shm endpoint says of itself, beside the memfd of its inbound channel and its doorbell.
#pragma once

#include <cstdint>

#include "base/blob.h"
#include "hmc/status.h"
#include "transport/shm/layout.h"

namespace hmc::shm {

struct AddressInfo {
  std::uint64_t key = 0;  // of the signal ring's tags
  Sizes sizes;
  std::uint64_t probe_address = 0;  // 0: the peer is to leave this process's memory alone
  std::uint64_t probe_word = 0;
};
void encode_address(const AddressInfo& info, Bytes& out);
Result<AddressInfo> decode_address(ByteSpan bytes);  // errors: protocol

}  // namespace hmc::shm
