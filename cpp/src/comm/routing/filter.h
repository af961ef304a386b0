// Which transports may be used: "shm,tcp" only these, "^shm" all but, empty all.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/status.h"

namespace hmc {

class TransportFilter {
 public:
  // Errors: invalid_argument for a name that is not in `known`, listing those that are.
  static Result<TransportFilter> parse(std::string_view text, std::span<const std::string> known);
  [[nodiscard]] bool allows(std::string_view name) const;
  [[nodiscard]] bool names(std::string_view name) const;  // mentioned, be it to allow or to exclude
  [[nodiscard]] bool excludes(std::string_view name) const { return exclude_ && names(name); }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
  bool exclude_ = false;
  std::vector<std::string> names_;
};

}  // namespace hmc
