#include "transport/shm/address.h"

#include <string>

#include "base/wire.h"

namespace hmc::shm {

namespace {

constexpr std::uint8_t address_version = 1;

}  // namespace

void encode_address(const AddressInfo& info, Bytes& out) {
  WireWriter(out)
      .u8(address_version)
      .u64(info.key)
      .u64(info.sizes.signal_bytes)
      .u64(info.sizes.slot_bytes)
      .u64(info.probe_address)
      .u64(info.probe_word);
}

Result<AddressInfo> decode_address(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  AddressInfo info;
  info.key = reader.u64();
  info.sizes.signal_bytes = reader.u64();
  info.sizes.slot_bytes = reader.u64();
  info.probe_address = reader.u64();
  info.probe_word = reader.u64();
  if (!reader.finish()) return Status(Code::protocol, "malformed shm address");
  if (version != address_version) {
    return Status(Code::protocol,
                  "shm address of version " + std::to_string(version) + ", this is version " + std::to_string(address_version));
  }
  if (!info.sizes.valid()) return Status(Code::protocol, "shm address with impossible ring sizes");
  return info;
}

}  // namespace hmc::shm
