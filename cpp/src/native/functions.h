// What the interfaces of the vendors' collective libraries have in common.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "native/api.h"

namespace hmc::native {

// Looks up names without the prefix that they all have. A required one that is missing is noted.
class FunctionLookup {
 public:
  FunctionLookup(VendorLibrary& library, std::string_view prefix) : library_(library), prefix_(prefix) {}
  template <class Function>
  void optional(Function& function, std::string_view name) {
    library_.load(function, prefix_ + std::string(name));
  }
  template <class Function>
  void required(Function& function, std::string_view name) {
    optional(function, name);
    if (function == nullptr) missing_ += (missing_.empty() ? "" : ", ") + prefix_ + std::string(name);
  }
  // Errors: unsupported.
  [[nodiscard]] Status status() const {
    return missing_.empty() ? Status() : Status(Code::unsupported, library_.path() + " has no " + missing_);
  }

 private:
  VendorLibrary& library_;
  const std::string prefix_;
  std::string missing_;
};

// clang-format off
#define HMC_COLLECTIVES(CALL)                                                                                \
  CALL(all_reduce, AllReduce, int(const void*, void*, std::size_t, int, int, Handle, Stream))                \
  CALL(reduce_scatter, ReduceScatter, int(const void*, void*, std::size_t, int, int, Handle, Stream))        \
  CALL(all_gather, AllGather, int(const void*, void*, std::size_t, int, Handle, Stream))                     \
  CALL(broadcast, Broadcast, int(const void*, void*, std::size_t, int, int, Handle, Stream))                 \
  CALL(reduce, Reduce, int(const void*, void*, std::size_t, int, int, int, Handle, Stream))
// clang-format on

#define HMC_REQUIRED_FUNCTION(member, name, ...) lookup.required(calls_.member, #name);
#define HMC_OPTIONAL_FUNCTION(member, name, ...) lookup.optional(calls_.member, #name);

struct Collectives {
  HMC_COLLECTIVES(HMC_CALL_MEMBER)
  // `type` and `op`: the library's numbers.
  [[nodiscard]] int start(const Call& call, int type, int op, Handle handle, Stream stream) const;
};

// The numbers of the operations that all have.
[[nodiscard]] std::optional<int> op_number(ReduceOp op) noexcept;
// Whether a library's min and max are HMC's: those of floating types lose NaNs.
[[nodiscard]] inline bool keeps_nans(DataType type, ReduceOp op) noexcept {
  return !is_floating(type) || (op != ReduceOp::min && op != ReduceOp::max);
}

}  // namespace hmc::native
