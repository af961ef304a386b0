#include "collective/invitation.h"

#include <algorithm>
#include <optional>

#include "base/wire.h"

namespace hmc {
namespace {

constexpr std::string_view prefix = "hmcjoin1-";
constexpr std::string_view digits = "0123456789abcdef";

std::optional<Bytes> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const std::size_t high = digits.find(text[i]), low = digits.find(text[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return bytes;
}

}  // namespace

std::string Invitation::str() const {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.raw(ticket).text(std::string_view(name).substr(0, job::max_text)).text(std::string_view(kernel).substr(0, job::max_text));
  const std::size_t count = std::min(addresses.size(), job::max_addresses);
  writer.u16(static_cast<std::uint16_t>(count));
  for (std::size_t i = 0; i < count; ++i) writer.text(addresses[i]);
  std::string text(prefix);
  for (const std::byte byte : bytes) {
    text += digits[std::to_integer<std::size_t>(byte) >> 4];
    text += digits[std::to_integer<std::size_t>(byte) & 15];
  }
  return text;
}

Result<Invitation> Invitation::parse(std::string_view text) {
  const auto wrong = [](const std::string& why) {
    return Status(Code::invalid_argument, "not an invitation: " + why + "; pass on what invite() returned, in full");
  };
  if (!text.starts_with(prefix)) return wrong("it does not begin with \"" + std::string(prefix) + "\"");
  const auto bytes = from_hex(text.substr(prefix.size()));
  if (!bytes) return wrong("it holds a character that is no hexadecimal digit, or one of them is missing");
  WireReader reader(*bytes);
  Invitation invitation;
  const ByteSpan ticket = reader.raw(invitation.ticket.size());
  if (ticket.size() != invitation.ticket.size()) return wrong("it is too short");
  std::ranges::copy(ticket, invitation.ticket.begin());
  invitation.name = reader.text(job::max_text);
  invitation.kernel = reader.text(job::max_text);
  const std::size_t count = reader.u16();
  if (count == 0 || count > job::max_addresses) return wrong("it names no address, or too many");
  for (std::size_t i = 0; i < count && reader.ok(); ++i) invitation.addresses.push_back(reader.text(job::max_text));
  if (!reader.finish()) return wrong("its length is wrong");
  return invitation;
}

}  // namespace hmc
