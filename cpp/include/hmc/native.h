// For programs that are not HMC: what a transport's own interface calls registered memory, and a way in for them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

// Facts by name. docs/reference/native.md lists those of every transport that has any.
using NativeFields = std::map<std::string, std::variant<std::uint64_t, std::string>, std::less<>>;

class NativeState;  // comm layer

// A connection that a program which is not HMC writes and reads registered memory through. Made by Context::connect_native(); the
// last handle's end closes it. Thread rules: any thread.
class HMC_API NativeConnection {
 public:
  NativeConnection() noexcept = default;
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] NativeFields fields() const;  // what the other program needs to connect its end
  // Nothing comes in through it afterwards. Idempotent; the Context's end closes it too.
  void close() const;

  explicit NativeConnection(std::shared_ptr<NativeState> state) noexcept : state_(std::move(state)) {}

 private:
  std::shared_ptr<NativeState> state_;
};

}  // namespace hmc
