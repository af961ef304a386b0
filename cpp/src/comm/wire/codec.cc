#include "comm/wire/codec.h"

#include "base/text.h"
#include "base/wire.h"

namespace hmc::wire {
namespace {

Bytes to_bytes(ByteSpan span) { return {span.begin(), span.end()}; }

Code read_code(WireReader& in) {
  const std::uint8_t value = in.u8();
  if (value > static_cast<std::uint8_t>(Code::protocol)) in.fail();
  return static_cast<Code>(value);
}

void read_note(WireReader& in, EndpointNote& m) {
  m.transport = in.text(max_transport_name);
  m.attempt = in.u32();
  m.code = read_code(in);
  m.message = in.text(max_message);
}

// Error texts are for people: a longer one is cut, not refused.
std::string_view clipped(std::string_view text) { return cut_utf8(text, max_message); }

template <class T>
std::optional<T> finished(const WireReader& in, T value) {
  if (!in.finish()) return std::nullopt;
  return value;
}

}  // namespace

Bytes encode(const Hello& m) {
  Bytes out;
  WireWriter w(out);
  w.u16(m.version).u64(m.session).text(m.choice).u16(static_cast<std::uint16_t>(m.transports.size()));
  for (const auto& t : m.transports) w.text(t.name).bytes(t.domain);
  w.u16(static_cast<std::uint16_t>(m.devices.size()));
  for (const auto& d : m.devices) w.text(d);
  return out;
}

std::optional<Hello> decode_hello(ByteSpan bytes) {
  WireReader in(bytes);
  Hello m;
  m.version = in.u16();
  m.session = in.u64();
  m.choice = in.text(max_transport_name);
  const std::size_t transports = in.u16();
  if (transports > max_transports) return std::nullopt;
  for (std::size_t i = 0; i < transports && in.ok(); ++i) {
    std::string name = in.text(max_transport_name);
    m.transports.push_back({std::move(name), to_bytes(in.bytes(max_domain))});
  }
  const std::size_t devices = in.u16();
  if (devices > max_devices) return std::nullopt;
  for (std::size_t i = 0; i < devices && in.ok(); ++i) m.devices.push_back(in.text(max_device_name));
  return finished(in, std::move(m));
}

Bytes encode(const Address& m) {
  Bytes out;
  WireWriter(out).text(m.transport).u32(m.attempt).bytes(m.bytes);
  return out;
}

std::optional<Address> decode_address(ByteSpan bytes) {
  WireReader in(bytes);
  Address m;
  m.transport = in.text(max_transport_name);
  m.attempt = in.u32();
  m.bytes = to_bytes(in.bytes(max_address));
  return finished(in, std::move(m));
}

Bytes encode(const EndpointNote& m) {
  Bytes out;
  WireWriter(out).text(m.transport).u32(m.attempt).u8(static_cast<std::uint8_t>(m.code)).text(clipped(m.message));
  return out;
}

std::optional<EndpointNote> decode_endpoint_note(ByteSpan bytes) {
  WireReader in(bytes);
  EndpointNote m;
  read_note(in, m);
  return finished(in, std::move(m));
}

Bytes encode(const Stopped& m) {
  Bytes out = encode(m.endpoint);
  WireWriter(out).u64(m.signals).u64(m.credit);
  return out;
}

std::optional<Stopped> decode_stopped(ByteSpan bytes) {
  WireReader in(bytes);
  Stopped m;
  read_note(in, m.endpoint);
  m.signals = in.u64();
  m.credit = in.u64();
  return finished(in, std::move(m));
}

Bytes encode(const Import& m) {
  Bytes out;
  WireWriter w(out);
  w.u64(m.request).u64(m.buffer_id).u64(m.generation).u64(m.nonce[0]).u64(m.nonce[1]).u64(m.size);
  w.u8(static_cast<std::uint8_t>(m.access)).text(m.transport);
  return out;
}

std::optional<Import> decode_import(ByteSpan bytes) {
  WireReader in(bytes);
  Import m;
  m.request = in.u64();
  m.buffer_id = in.u64();
  m.generation = in.u64();
  m.nonce[0] = in.u64();
  m.nonce[1] = in.u64();
  m.size = in.u64();
  const std::uint8_t access = in.u8();
  if (access != static_cast<std::uint8_t>(Access::read) && access != static_cast<std::uint8_t>(Access::read_write)) in.fail();
  m.access = static_cast<Access>(access);
  m.transport = in.text(max_transport_name);
  return finished(in, std::move(m));
}

Bytes encode(const Answer& m) {
  Bytes out;
  WireWriter w(out);
  w.u64(m.request).u8(static_cast<std::uint8_t>(m.code)).text(clipped(m.message)).bytes(m.bytes);
  return out;
}

std::optional<Answer> decode_answer(ByteSpan bytes) {
  WireReader in(bytes);
  Answer m;
  m.request = in.u64();
  m.code = read_code(in);
  m.message = in.text(max_message);
  m.bytes = to_bytes(in.bytes(max_exported));
  return finished(in, std::move(m));
}

Bytes encode(const Lookup& m) {
  Bytes out;
  WireWriter(out).u64(m.request).text(m.name);
  return out;
}

std::optional<Lookup> decode_lookup(ByteSpan bytes) {
  WireReader in(bytes);
  Lookup m;
  m.request = in.u64();
  m.name = in.text(max_name);
  return finished(in, std::move(m));
}

Bytes encode_request(std::uint64_t request) {
  Bytes out;
  WireWriter(out).u64(request);
  return out;
}

std::optional<std::uint64_t> decode_request(ByteSpan bytes) {
  WireReader in(bytes);
  const std::uint64_t request = in.u64();
  return finished(in, request);
}

Bytes encode(const BufferName& m) {
  Bytes out;
  WireWriter(out).u64(m.buffer_id).u64(m.generation);
  return out;
}

std::optional<BufferName> decode_buffer_name(ByteSpan bytes) {
  WireReader in(bytes);
  BufferName m;
  m.buffer_id = in.u64();
  m.generation = in.u64();
  return finished(in, m);
}

}  // namespace hmc::wire
