#include "transport/staging/messages.h"

namespace hmc::staging {

namespace {

constexpr std::size_t max_export = 1024;
constexpr std::size_t max_reason = 512;
enum class Kind : std::uint8_t { rings = 1, push, pull, finished };

void put(WireWriter& writer, Kind kind) { writer.u8(static_cast<std::uint8_t>(kind)); }

struct Encode {
  WireWriter writer;
  void operator()(const Rings& m) {
    put(writer, Kind::rings);
    writer.bytes(m.own).bytes(m.mirror);
  }
  void operator()(const Chunk& m) {
    put(writer, m.push ? Kind::push : Kind::pull);
    writer.u32(m.slot).u32(m.entries).u64(m.bytes);
  }
  void operator()(const Finished& m) {
    put(writer, Kind::finished);
    writer.u32(m.slot).u8(static_cast<std::uint8_t>(m.code)).text(std::string_view(m.message).substr(0, max_reason));
  }
};

}  // namespace

Bytes encode(const Message& message) {
  Bytes bytes;
  std::visit(Encode{WireWriter(bytes)}, message);
  return bytes;
}

std::optional<Message> decode(ByteSpan bytes) {
  WireReader reader(bytes);
  const auto kind = static_cast<Kind>(reader.u8());
  Message message;
  const auto copy = [](ByteSpan span) { return Bytes(span.begin(), span.end()); };
  if (kind == Kind::rings) {
    Rings m;
    m.own = copy(reader.bytes(max_export));
    m.mirror = copy(reader.bytes(max_export));
    message = std::move(m);
  } else if (kind == Kind::push || kind == Kind::pull) {
    Chunk m;
    m.push = kind == Kind::push;
    m.slot = reader.u32();
    m.entries = reader.u32();
    m.bytes = reader.u64();
    message = m;
  } else if (kind == Kind::finished) {
    Finished m;
    m.slot = reader.u32();
    const std::uint8_t code = reader.u8();
    if (code > static_cast<std::uint8_t>(Code::protocol)) return std::nullopt;
    m.code = static_cast<Code>(code);
    m.message = reader.text(max_reason);
    message = std::move(m);
  } else {
    return std::nullopt;
  }
  if (!reader.finish()) return std::nullopt;
  return message;
}

}  // namespace hmc::staging
