// Wire codec: little-endian, bounded, never a struct copied from the wire. Peer bytes are untrusted: every Reader call checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/blob.h"

namespace hmc {

class WireWriter {
 public:
  explicit WireWriter(Bytes& out) noexcept : out_(out) {}
  WireWriter& u8(std::uint8_t v);
  WireWriter& u16(std::uint16_t v);
  WireWriter& u32(std::uint32_t v);
  WireWriter& u64(std::uint64_t v);
  WireWriter& i64(std::int64_t v) { return u64(static_cast<std::uint64_t>(v)); }
  WireWriter& f64(double v);
  WireWriter& bytes(ByteSpan v);         // u32 length, then the bytes
  WireWriter& text(std::string_view v);  // as bytes()
  WireWriter& raw(ByteSpan v);           // no length

 private:
  Bytes& out_;
};

// Sticky failure: after the first bad read every value is 0/empty and ok() is false. Check ok() (or finish()) before use.
class WireReader {
 public:
  explicit WireReader(ByteSpan in) noexcept : in_(in) {}
  std::uint8_t u8() noexcept;
  std::uint16_t u16() noexcept;
  std::uint32_t u32() noexcept;
  std::uint64_t u64() noexcept;
  std::int64_t i64() noexcept { return static_cast<std::int64_t>(u64()); }
  double f64() noexcept;
  ByteSpan bytes(std::size_t limit) noexcept;  // fails when longer than `limit`
  std::string text(std::size_t limit);
  ByteSpan raw(std::size_t n) noexcept;
  ByteSpan rest() noexcept;  // everything left
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] bool finish() const noexcept { return ok_ && in_.empty(); }  // ok and nothing left over
  void fail() noexcept {
    ok_ = false;
    in_ = {};
  }

 private:
  ByteSpan in_;
  bool ok_ = true;
};

}  // namespace hmc
