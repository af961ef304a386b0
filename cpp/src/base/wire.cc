#include "base/wire.h"

#include <bit>
#include <cstring>

#include "base/text.h"

namespace hmc {
namespace {

static_assert(std::endian::native == std::endian::little, "the codec copies little-endian integers");

template <class T>
void append(Bytes& out, T value) {
  const auto* raw = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), raw, raw + sizeof value);
}

template <class T>
T take(ByteSpan& in, bool& ok) noexcept {
  T value{};
  if (in.size() < sizeof value) {
    ok = false;
    in = {};
    return value;
  }
  std::memcpy(&value, in.data(), sizeof value);
  in = in.subspan(sizeof value);
  return value;
}

}  // namespace

WireWriter& WireWriter::u8(std::uint8_t v) { return append(out_, v), *this; }
WireWriter& WireWriter::u16(std::uint16_t v) { return append(out_, v), *this; }
WireWriter& WireWriter::u32(std::uint32_t v) { return append(out_, v), *this; }
WireWriter& WireWriter::u64(std::uint64_t v) { return append(out_, v), *this; }
WireWriter& WireWriter::f64(double v) { return append(out_, v), *this; }
WireWriter& WireWriter::raw(ByteSpan v) { return out_.insert(out_.end(), v.begin(), v.end()), *this; }
WireWriter& WireWriter::bytes(ByteSpan v) { return u32(static_cast<std::uint32_t>(v.size())).raw(v); }
WireWriter& WireWriter::text(std::string_view v) { return bytes(std::as_bytes(std::span(v.data(), v.size()))); }

std::uint8_t WireReader::u8() noexcept { return take<std::uint8_t>(in_, ok_); }
std::uint16_t WireReader::u16() noexcept { return take<std::uint16_t>(in_, ok_); }
std::uint32_t WireReader::u32() noexcept { return take<std::uint32_t>(in_, ok_); }
std::uint64_t WireReader::u64() noexcept { return take<std::uint64_t>(in_, ok_); }
double WireReader::f64() noexcept { return take<double>(in_, ok_); }

ByteSpan WireReader::raw(std::size_t n) noexcept {
  if (n > in_.size()) {
    fail();
    return {};
  }
  const ByteSpan value = in_.first(n);
  in_ = in_.subspan(n);
  return value;
}

ByteSpan WireReader::bytes(std::size_t limit) noexcept {
  const std::uint32_t size = u32();
  if (size > limit) {
    fail();
    return {};
  }
  return raw(size);
}

std::string WireReader::text(std::size_t limit) {
  const ByteSpan value = bytes(limit);
  return valid_utf8({reinterpret_cast<const char*>(value.data()), value.size()}, limit);
}

ByteSpan WireReader::rest() noexcept { return raw(in_.size()); }

}  // namespace hmc
