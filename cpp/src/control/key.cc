#include "control/key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "control/channel.h"

namespace hmc {
namespace control {
namespace {

constexpr std::string_view prefix = "hmc1-";
constexpr std::string_view alphabet = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::size_t random_part = 32;
constexpr std::size_t checksum_part = 3;
constexpr std::size_t encoded_length = (random_part + checksum_part) * 8 / 5;  // 56, without padding
constexpr std::size_t shortest_passphrase = 16;
static_assert((random_part + checksum_part) * 8 % 5 == 0);

using Raw = std::array<unsigned char, random_part + checksum_part>;

// Catches typing errors; guards nothing.
void append_checksum(Raw& raw) {
  constexpr std::string_view label = "hmc job key checksum";
  std::array<unsigned char, label.size() + random_part> input{};
  std::ranges::copy(label, input.begin());
  std::copy_n(raw.begin(), random_part, input.begin() + label.size());
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(input.data(), input.size(), digest.data());
  std::copy_n(digest.begin(), checksum_part, raw.begin() + random_part);
  OPENSSL_cleanse(input.data(), input.size());
}

std::string encode(const Raw& raw) {
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  for (const unsigned char byte : raw) {
    bits = (bits << 8) | byte;
    for (held += 8; held >= 5; held -= 5) out += alphabet[(bits >> (held - 5)) & 31];
    bits &= 31;
  }
  return out;
}

Status check_generated(std::string_view body) {
  const auto bad = [](const std::string& why) {
    return Status(Code::invalid_argument,
                  "the job key is malformed: " + why + "; copy it again in full, or make one with `hmc keygen`");
  };
  if (body.size() != encoded_length) {
    return bad("'hmc1-' must be followed by " + std::to_string(encoded_length) + " characters, not " + std::to_string(body.size()));
  }
  Raw raw{};
  std::uint32_t bits = 0;
  int held = 0;
  std::size_t at = 0;
  for (const char c : body) {
    const std::size_t digit = alphabet.find(c);
    if (digit == std::string_view::npos) return bad("it may hold only letters and the digits 2 to 7");
    bits = (bits << 5) | static_cast<std::uint32_t>(digit);
    held += 5;
    if (held >= 8) {
      held -= 8;
      raw[at++] = static_cast<unsigned char>(bits >> held);
      bits &= (1U << held) - 1;
    }
  }
  Raw again = raw;
  append_checksum(again);
  const bool same = CRYPTO_memcmp(raw.data(), again.data(), raw.size()) == 0;
  OPENSSL_cleanse(raw.data(), raw.size());
  OPENSSL_cleanse(again.data(), again.size());
  return same ? Status() : bad("its checksum does not match, so a character is wrong");
}

std::array<unsigned char, 32> hmac_sha256(std::span<const unsigned char> key, std::span<const unsigned char> data) {
  std::array<unsigned char, 32> out{};
  unsigned int length = out.size();
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data.data(), data.size(), out.data(), &length);
  return out;
}

std::span<const unsigned char> octets(std::string_view text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

}  // namespace

Result<PresharedKey> PresharedKey::from_text(std::string_view text) {
  constexpr std::string_view space = " \t\r\n";
  const std::size_t first = text.find_first_not_of(space);
  text = first == std::string_view::npos ? std::string_view() : text.substr(first, text.find_last_not_of(space) - first + 1);
  std::string canonical(text);
  std::string start = canonical.substr(0, prefix.size());
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  std::ranges::transform(start, start.begin(), lower);
  Status status;
  if (start == prefix) {
    std::ranges::transform(canonical, canonical.begin(), lower);
    status = check_generated(std::string_view(canonical).substr(prefix.size()));
  } else if (canonical.size() < shortest_passphrase) {
    status = Status(Code::invalid_argument, "the job key has " + std::to_string(canonical.size()) +
                                                " characters; a passphrase needs at least " + std::to_string(shortest_passphrase) +
                                                ", better is a key made by `hmc keygen`");
  }
  PresharedKey key;
  if (status.ok()) {
    // RFC 5869: extract, then the first and only block of expand.
    const auto extracted = hmac_sha256(octets("hmc job key, version 1"), octets(canonical));
    constexpr std::string_view info = "hmc tls 1.3 external psk\x01";
    key.bytes_ = hmac_sha256(extracted, octets(info));
  }
  OPENSSL_cleanse(canonical.data(), canonical.size());
  if (!status.ok()) return status;
  return key;
}

PresharedKey::~PresharedKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

}  // namespace control

std::string generate_key() {
  control::Raw raw{};
  random_bytes(std::as_writable_bytes(std::span(raw).first(control::random_part)));
  control::append_checksum(raw);
  std::string text(control::prefix);
  text += control::encode(raw);
  OPENSSL_cleanse(raw.data(), raw.size());
  return text;
}

}  // namespace hmc
