// Descriptor: a versioned, bounded codec. Names a buffer; what it grants is decided by its owner at import.
#include "base/wire.h"
#include "hmc/buffer.h"

namespace hmc {
namespace {

constexpr std::uint32_t descriptor_magic = 0x64434d48;  // "HMCd"
constexpr std::uint16_t descriptor_version = 1;
constexpr std::size_t max_descriptor_device = 32;

}  // namespace

std::vector<std::byte> Descriptor::serialise() const {
  Bytes out;
  WireWriter w(out);
  w.u32(descriptor_magic).u16(descriptor_version).u64(context_id[0]).u64(context_id[1]).u64(buffer_id).u64(generation).u64(size);
  w.u64(nonce[0]).u64(nonce[1]).u8(static_cast<std::uint8_t>(access)).text(device);
  return out;
}

Result<Descriptor> Descriptor::parse(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const std::uint32_t magic = in.u32();
  const std::uint16_t version = in.u16();
  if (!in.ok() || magic != descriptor_magic) {
    return Status(Code::protocol,
                  "these " + std::to_string(bytes.size()) +
                      " bytes are not a buffer descriptor; pass what ConnBuffer::descriptor().serialise() returned");
  }
  if (version != descriptor_version) {
    return Status(Code::protocol, "descriptor of version " + std::to_string(version) + "; this library reads version " +
                                      std::to_string(descriptor_version) + ": use one HMC version on both sides");
  }
  Descriptor d;
  d.context_id[0] = in.u64();
  d.context_id[1] = in.u64();
  d.buffer_id = in.u64();
  d.generation = in.u64();
  d.size = in.u64();
  d.nonce[0] = in.u64();
  d.nonce[1] = in.u64();
  const std::uint8_t access = in.u8();
  d.device = in.text(max_descriptor_device);
  if (!in.finish())
    return Status(Code::protocol, "descriptor of " + std::to_string(bytes.size()) + " bytes is cut short or too long");
  if (access != static_cast<std::uint8_t>(Access::read) && access != static_cast<std::uint8_t>(Access::read_write)) {
    return Status(Code::protocol, "descriptor with unknown access " + std::to_string(access));
  }
  d.access = static_cast<Access>(access);
  if (const auto device = Device::parse(d.device); !device.ok())
    return Status(Code::protocol, "descriptor with malformed device name");
  return d;
}

}  // namespace hmc
