// Text from outside (peers, drivers, the system) as valid UTF-8, and cut between characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hmc {

// `text` with U+FFFD for every byte that is not part of a character, cut to at most `limit` bytes between two characters.
std::string valid_utf8(std::string_view text, std::size_t limit);
// The longest beginning of valid UTF-8 that has at most `limit` bytes and ends between two characters.
std::string_view cut_utf8(std::string_view text, std::size_t limit) noexcept;
// Bytes of the character that `text` begins with: 1 to 4; 0 where it begins with none, or only with a part of one.
std::size_t utf8_character(std::string_view text) noexcept;

}  // namespace hmc
