// How plans are printed: rows within 80 columns.
#pragma once

#include <string>
#include <string_view>

namespace hmc {

// "1.25 ms"
std::string time_text(double seconds);
// "  label       text", wrapped below itself, with the end of the line.
std::string text_row(std::string_view label, std::string_view text);

}  // namespace hmc
