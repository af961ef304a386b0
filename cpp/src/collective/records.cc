#include "collective/records.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "base/wire.h"

namespace hmc::job {
namespace {

constexpr std::size_t max_descriptor = 4096;

std::uint8_t number(Code code) { return static_cast<std::uint8_t>(code); }

bool known(std::uint8_t code) { return code <= number(Code::protocol); }

// Never ok; a code that this library does not know is read as `protocol`.
Status error_of(std::uint8_t code, std::string text) {
  const bool error = known(code) && code != number(Code::ok);
  return {error ? static_cast<Code>(code) : Code::protocol, std::move(text)};
}

}  // namespace

Bytes encode(const Arrival& m) {
  Bytes out;
  WireWriter(out).u32(m.round).u32(m.who).u32(m.size).u32(m.wait_ms).bytes(m.value);
  return out;
}

std::optional<Arrival> decode_arrival(ByteSpan in) {
  WireReader reader(in);
  Arrival m;
  m.round = reader.u32();
  m.who = reader.u32();
  m.size = reader.u32();
  m.wait_ms = reader.u32();
  m.value = reader.bytes(max_bootstrap_value);
  if (!reader.finish() || m.round >= bootstrap_rounds) return std::nullopt;
  return m;
}

Bytes encode(const Gathered& m) {
  Bytes out;
  WireWriter writer(out);
  writer.u32(m.round).u8(number(m.status.code())).text(cut_utf8(m.status.message(), max_reason));
  writer.u32(static_cast<std::uint32_t>(m.values.size()));
  for (const auto& value : m.values) writer.bytes(value);
  return out;
}

std::optional<Gathered> decode_gathered(ByteSpan in) {
  WireReader reader(in);
  Gathered m;
  m.round = reader.u32();
  const std::uint8_t code = reader.u8();
  std::string text = reader.text(max_reason);
  const std::uint32_t count = reader.u32();
  if (!known(code) || count > max_processes) return std::nullopt;
  if (code != number(Code::ok)) m.status = Status(static_cast<Code>(code), std::move(text));
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    const ByteSpan value = reader.bytes(max_bootstrap_value);
    m.values.emplace_back(value.begin(), value.end());
  }
  if (!reader.finish()) return std::nullopt;
  return m;
}

Bytes encode(const Registration& m) {
  Bytes out;
  WireWriter writer(out);
  writer.u64(m.id[0]).u64(m.id[1]).text(cut_utf8(m.name, max_text)).text(m.kernel);
  const std::size_t addresses = std::min(m.addresses.size(), max_addresses);
  writer.u16(static_cast<std::uint16_t>(addresses));
  for (std::size_t i = 0; i < addresses; ++i) writer.text(m.addresses[i]);
  writer.u16(static_cast<std::uint16_t>(m.devices.size()));
  for (const auto& device : m.devices) writer.text(device.str());
  return out;
}

std::optional<Registration> decode_registration(ByteSpan in) {
  WireReader reader(in);
  Registration m;
  m.id[0] = reader.u64();
  m.id[1] = reader.u64();
  m.name = reader.text(max_text);
  m.kernel = reader.text(max_text);
  const std::size_t addresses = reader.u16();
  if (addresses > max_addresses) return std::nullopt;
  for (std::size_t i = 0; i < addresses && reader.ok(); ++i) m.addresses.push_back(reader.text(max_text));
  const std::size_t devices = reader.u16();
  if (devices == 0 || devices > max_devices) return std::nullopt;
  for (std::size_t i = 0; i < devices && reader.ok(); ++i) {
    const auto device = Device::parse(reader.text(max_text));
    if (!device) return std::nullopt;
    m.devices.push_back(*device);
  }
  if (!reader.finish()) return std::nullopt;
  return m;
}

Bytes encode(const ProcessLost& m) {
  Bytes out;
  WireWriter(out).u64(m.id[0]).u64(m.id[1]).text(cut_utf8(m.reason, max_reason));
  return out;
}

std::optional<ProcessLost> decode_process_lost(ByteSpan in) {
  WireReader reader(in);
  ProcessLost m;
  m.id[0] = reader.u64();
  m.id[1] = reader.u64();
  m.reason = reader.text(max_reason);
  if (!reader.finish()) return std::nullopt;
  return m;
}

Bytes encode(const Breakage& m) {
  Bytes out;
  WireWriter(out).u64(m.group_id).u64(m.sequence).u8(number(m.reason.code())).text(cut_utf8(m.reason.message(), max_reason));
  return out;
}

std::optional<Breakage> decode_breakage(ByteSpan in) {
  WireReader reader(in);
  Breakage m;
  m.group_id = reader.u64();
  m.sequence = reader.u64();
  const std::uint8_t code = reader.u8();
  std::string text = reader.text(max_reason);
  if (!reader.finish()) return std::nullopt;
  m.reason = error_of(code, std::move(text));
  return m;
}

Bytes encode(const Offer& m) {
  Bytes out;
  WireWriter writer(out);
  if (m.error.ok()) {
    writer.u8(1).u64(m.offset).u64(m.size).bytes(m.descriptor.serialise());
  } else {
    writer.u8(0).text(cut_utf8(m.error.message(), max_reason));
  }
  return out;
}

std::optional<Offer> decode_offer(ByteSpan in) {
  WireReader reader(in);
  Offer m;
  const std::uint8_t given = reader.u8();
  if (given == 1) {
    m.offset = reader.u64();
    m.size = reader.u64();
    auto descriptor = Descriptor::parse(reader.bytes(max_descriptor));
    if (!descriptor) return std::nullopt;
    m.descriptor = std::move(*descriptor);
  } else {
    m.error = Status(Code::invalid_argument, reader.text(max_reason));
  }
  if (!reader.finish() || given > 1) return std::nullopt;
  return m;
}

Bytes encode(const Wish& m) {
  Bytes out;
  WireWriter(out).u32(static_cast<std::uint32_t>(m.color)).u32(static_cast<std::uint32_t>(m.key)).u32(m.scope);
  return out;
}

std::optional<Wish> decode_wish(ByteSpan in) {
  WireReader reader(in);
  Wish m;
  m.color = static_cast<int>(reader.u32());
  m.key = static_cast<int>(reader.u32());
  m.scope = reader.u32();
  if (!reader.finish()) return std::nullopt;
  return m;
}

namespace {

// Bit i of byte i / 8: process i.
Bytes as_bits(const std::vector<std::uint32_t>& processes) {
  Bytes bits(processes.empty() ? 0 : processes.back() / 8 + 1);
  for (const std::uint32_t process : processes) bits[process / 8] |= std::byte{1} << (process % 8);
  return bits;
}

std::vector<std::uint32_t> from_bits(ByteSpan bits) {
  std::vector<std::uint32_t> processes;
  for (std::uint32_t process = 0; process < bits.size() * 8; ++process) {
    if ((bits[process / 8] >> (process % 8) & std::byte{1}) != std::byte{0}) processes.push_back(process);
  }
  return processes;
}

}  // namespace

Bytes encode(const Shrink& m) {
  Bytes out;
  WireWriter writer(out);
  writer.u8(static_cast<std::uint8_t>(m.kind)).u64(m.group_id).u32(m.instance).u32(m.attempt).u32(m.scope);
  writer.bytes(as_bits(m.processes)).u8(number(m.reason.code())).text(cut_utf8(m.reason.message(), max_reason));
  return out;
}

std::optional<Shrink> decode_shrink(ByteSpan in) {
  WireReader reader(in);
  Shrink m;
  const std::uint8_t kind = reader.u8();
  m.group_id = reader.u64();
  m.instance = reader.u32();
  m.attempt = reader.u32();
  m.scope = reader.u32();
  m.processes = from_bits(reader.bytes(max_processes / 8));
  const std::uint8_t code = reader.u8();
  std::string text = reader.text(max_reason);
  if (!reader.finish() || kind < 1 || kind > static_cast<std::uint8_t>(ShrinkKind::give_up)) return std::nullopt;
  m.kind = static_cast<ShrinkKind>(kind);
  if (m.kind == ShrinkKind::refuse || m.kind == ShrinkKind::give_up) m.reason = error_of(code, std::move(text));
  return m;
}

Bytes encode(const Grow& m) {
  Bytes out;
  WireWriter writer(out);
  writer.u8(static_cast<std::uint8_t>(m.kind)).u64(m.group_id).u32(m.instance).u32(m.wait_ms).bytes(m.value);
  writer.u8(number(m.reason.code())).text(cut_utf8(m.reason.message(), max_reason));
  return out;
}

std::optional<Grow> decode_grow(ByteSpan in) {
  WireReader reader(in);
  Grow m;
  const std::uint8_t kind = reader.u8();
  m.group_id = reader.u64();
  m.instance = reader.u32();
  m.wait_ms = reader.u32();
  const ByteSpan value = reader.bytes(max_bootstrap_value);
  const std::uint8_t code = reader.u8();
  std::string text = reader.text(max_reason);
  if (!reader.finish() || kind < 1 || kind > static_cast<std::uint8_t>(GrowKind::give_up)) return std::nullopt;
  m.kind = static_cast<GrowKind>(kind);
  m.value.assign(value.begin(), value.end());
  if (m.kind == GrowKind::give_up) m.reason = error_of(code, std::move(text));
  return m;
}

Bytes encode(const Application& m) {
  Bytes out;
  WireWriter(out).raw(m.ticket).u32(m.wait_ms).bytes(m.value);
  return out;
}

std::optional<Application> decode_application(ByteSpan in) {
  WireReader reader(in);
  Application m;
  const ByteSpan ticket = reader.raw(m.ticket.size());
  if (ticket.size() != m.ticket.size()) return std::nullopt;
  std::ranges::copy(ticket, m.ticket.begin());
  m.wait_ms = reader.u32();
  const ByteSpan value = reader.bytes(max_bootstrap_value);
  if (!reader.finish()) return std::nullopt;
  m.value.assign(value.begin(), value.end());
  return m;
}

Bytes encode(const Table& m) {
  Bytes out;
  WireWriter writer(out);
  writer.u64(m.group_id).u32(m.instance).u32(m.old_size).u8(number(m.status.code())).text(cut_utf8(m.status.message(), max_reason));
  writer.u32(static_cast<std::uint32_t>(m.processes.size()));
  for (const Registration& process : m.processes) writer.bytes(encode(process));
  writer.u32(static_cast<std::uint32_t>(m.owners.size()));
  for (const std::uint32_t owner : m.owners) writer.u32(owner);
  return out;
}

bool owns_all(const Table& m) {
  std::vector<std::size_t> ranks(m.processes.size(), 0);
  for (const std::uint32_t owner : m.owners) {
    if (owner >= ranks.size()) return false;
    ++ranks[owner];
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != m.processes[i].devices.size()) return false;
  }
  return m.old_size <= m.owners.size();
}

std::optional<Table> decode_table(ByteSpan in) {
  WireReader reader(in);
  Table m;
  m.group_id = reader.u64();
  m.instance = reader.u32();
  m.old_size = reader.u32();
  const std::uint8_t code = reader.u8();
  std::string text = reader.text(max_reason);
  if (code != number(Code::ok)) m.status = error_of(code, std::move(text));
  const std::uint32_t processes = reader.u32();
  if (processes > max_processes) return std::nullopt;
  for (std::uint32_t i = 0; i < processes && reader.ok(); ++i) {
    auto process = decode_registration(reader.bytes(max_bootstrap_value));
    if (!process) return std::nullopt;
    m.processes.push_back(std::move(*process));
  }
  const std::uint32_t ranks = reader.u32();
  if (ranks > max_processes * max_devices) return std::nullopt;
  for (std::uint32_t i = 0; i < ranks && reader.ok(); ++i) m.owners.push_back(reader.u32());
  if (!reader.finish() || !owns_all(m) || m.status.ok() == m.processes.empty()) return std::nullopt;
  return m;
}

}  // namespace hmc::job
