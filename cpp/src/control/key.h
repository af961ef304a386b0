// The job key: its text form, and the secret that TLS gets from it.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "hmc/status.h"

namespace hmc::control {

// 256 bits; wiped when it goes.
class PresharedKey {
 public:
  // `text` is "hmc1-..." as generate_key() makes it (case does not matter), or a passphrase of at least 16 characters. White space
  // around it is ignored. HKDF-SHA-256 stretches nothing: a passphrase must be hard to guess by itself. Errors: invalid_argument.
  static Result<PresharedKey> from_text(std::string_view text);
  PresharedKey(const PresharedKey&) = default;
  PresharedKey& operator=(const PresharedKey&) = default;
  ~PresharedKey();
  [[nodiscard]] const std::array<unsigned char, 32>& bytes() const noexcept { return bytes_; }

 private:
  PresharedKey() = default;
  std::array<unsigned char, 32> bytes_{};
};

}  // namespace hmc::control
