#include "base/text.h"

namespace hmc {
namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";  // U+FFFD

constexpr unsigned byte_at(std::string_view text, std::size_t i) noexcept { return static_cast<unsigned char>(text[i]); }

}  // namespace

std::size_t utf8_character(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const unsigned lead = byte_at(text, 0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xc2 && lead < 0xe0 ? 2 : (lead & 0xf0) == 0xe0 ? 3 : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  const unsigned second = byte_at(text, 1);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
      (lead == 0xf4 && second > 0x8f)) {
    return 0;
  }
  return length;
}

std::string valid_utf8(std::string_view text, std::size_t limit) {
  std::string out;
  out.reserve(text.size() < limit ? text.size() : limit);
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    const std::string_view next = length == 0 ? replacement : text.substr(0, length);
    if (out.size() + next.size() > limit) break;
    out += next;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string_view cut_utf8(std::string_view text, std::size_t limit) noexcept {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && (byte_at(text, end) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace hmc
