#include "collective/native/calls.h"

namespace hmc::native {
namespace {

bool suits(const MemoryView& out, const MemoryView& in, std::size_t element) noexcept {
  const auto bits = reinterpret_cast<std::uintptr_t>(out.data) | reinterpret_cast<std::uintptr_t>(in.data);
  return !in.device.is_cpu() && in.device == out.device && bits % element == 0;
}

}  // namespace

std::optional<Call> reduction_call(Kind kind, const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                   std::uint64_t bytes, std::uint32_t root) noexcept {
  const std::size_t element = size_of(reduction.type);
  const auto type = type_number(reduction.type), op = op_number(reduction.op, reduction.type);
  if (!type || !op || (reduction.exact && is_floating(reduction.type)) || !suits(out, in, element)) return std::nullopt;
  return Call{kind, *type, *op, static_cast<std::size_t>(bytes / element), static_cast<int>(root), in.data, out.data};
}

std::optional<Call> spread_call(Kind kind, const MemoryView& out, const MemoryView& in, std::uint64_t bytes,
                                std::uint32_t root) noexcept {
  if (!suits(out, in, 1)) return std::nullopt;
  return Call{kind, nccl::u8, nccl::sum, static_cast<std::size_t>(bytes), static_cast<int>(root), in.data, out.data};
}

}  // namespace hmc::native
