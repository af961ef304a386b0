#include "collective/native/calls.h"

#include "native/library.h"

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
  if ((reduction.exact && is_floating(reduction.type)) || !suits(out, in, element)) return std::nullopt;
  const Library* const library = library_of(in.device.vendor());
  if (library == nullptr || !library->api().reduces(reduction.type, reduction.op)) return std::nullopt;
  return Call{kind,    reduction.type, reduction.op, static_cast<std::size_t>(bytes / element), static_cast<int>(root),
              in.data, out.data};
}

std::optional<Call> spread_call(Kind kind, const MemoryView& out, const MemoryView& in, std::uint64_t bytes,
                                std::uint32_t root) noexcept {
  if (!suits(out, in, 1)) return std::nullopt;
  return Call{kind, DataType::u8, ReduceOp::sum, static_cast<std::size_t>(bytes), static_cast<int>(root), in.data, out.data};
}

}  // namespace hmc::native
