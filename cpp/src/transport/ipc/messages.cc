#include "transport/ipc/messages.h"

#include <string_view>

#include "base/wire.h"

namespace hmc::ipc {

namespace {

constexpr std::size_t max_reason = 512;
constexpr std::size_t max_attached = 64 << 10;
enum class Kind : std::uint8_t { put = 1, get, answer, forget };

WireWriter& start(WireWriter& writer, Kind kind) { return writer.u8(static_cast<std::uint8_t>(kind)); }

struct Encode {
  WireWriter writer;
  void operator()(const Ask& m) {
    start(writer, m.put ? Kind::put : Kind::get).u32(m.number).u64(m.memory).u64(m.region).u64(m.block);
    writer.bytes(m.signal).u32(static_cast<std::uint32_t>(m.memory_offsets.size()));
    for (std::size_t i = 0; i < m.memory_offsets.size(); ++i) writer.u64(m.memory_offsets[i]).u64(m.region_offsets[i]);
  }
  void operator()(const Answer& m) {
    start(writer, Kind::answer).u32(m.number).u8(static_cast<std::uint8_t>(m.code));
    writer.text(std::string_view(m.message).substr(0, max_reason));
  }
  void operator()(const Forget& m) { start(writer, Kind::forget).u64(m.memory); }
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
  if (kind == Kind::put || kind == Kind::get) {
    Ask m;
    m.put = kind == Kind::put;
    m.number = reader.u32();
    m.memory = reader.u64();
    m.region = reader.u64();
    m.block = reader.u64();
    const ByteSpan signal = reader.bytes(max_attached);
    m.signal.assign(signal.begin(), signal.end());
    const std::size_t count = reader.u32();
    if (count == 0 || count > bytes.size() / 16 || m.block == 0 || m.number >= max_asks || (!m.put && !signal.empty())) {
      return std::nullopt;
    }
    m.memory_offsets.reserve(count);
    m.region_offsets.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      m.memory_offsets.push_back(reader.u64());
      m.region_offsets.push_back(reader.u64());
    }
    message = std::move(m);
  } else if (kind == Kind::answer) {
    Answer m;
    m.number = reader.u32();
    const std::uint8_t code = reader.u8();
    if (m.number >= max_asks || code > static_cast<std::uint8_t>(Code::protocol)) return std::nullopt;
    m.code = static_cast<Code>(code);
    m.message = reader.text(max_reason);
    message = std::move(m);
  } else if (kind == Kind::forget) {
    message = Forget{reader.u64()};
  } else {
    return std::nullopt;
  }
  if (!reader.finish()) return std::nullopt;
  return message;
}

Bytes encode(const Announcement& announcement) {
  Bytes bytes;
  WireWriter(bytes).u64(announcement.memory).bytes(announcement.exported);
  return bytes;
}

std::optional<Announcement> decode_announcement(ByteSpan bytes) {
  WireReader reader(bytes);
  Announcement announcement;
  announcement.memory = reader.u64();
  const ByteSpan exported = reader.bytes(max_announcement);
  announcement.exported.assign(exported.begin(), exported.end());
  if (!reader.finish()) return std::nullopt;
  return announcement;
}

}  // namespace hmc::ipc
