// The kernels of weighted sums: cpp/src/device/kernels/weighted_sum.cu and what it needs, compiled for the host.
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "copies.h"
#include "device_code.h"
#include "kernels.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // elements beyond a row's end
#endif
// Stands behind the one before.
#include "../src/device/kernels/reduce.cu"
#define HMC_WEIGHTED_SUM_ALL
#include "../src/device/kernels/weighted_sum.cu"
#pragma GCC diagnostic pop

namespace hmc::sim {
namespace {

using Call = hmc_weighted_sum_kernel::Call;

struct Row {
  std::string_view name;
  void (*kernel)(Call);
  std::size_t element;
};
#define HMC_ROW(type, bytes) {"hmc_weighted_sum_" #type, hmc_weighted_sum_##type, bytes}
constexpr std::array rows{Row HMC_ROW(f32, 4),       Row HMC_ROW(f16, 2),         Row HMC_ROW(bf16, 2),
                          Row HMC_ROW(f8_e4m3fn, 1), Row HMC_ROW(f8_e4m3fnuz, 1), Row HMC_ROW(f8_e5m2, 1)};

// A thread that leaves its memory faults, and so does one that is not aligned to what it moves at a time.
Error run(const Row& row, const Call& given, unsigned groups) {
  using Term = hmc_weighted_sum_kernel::Term;
  Call call = given;
  std::deque<std::shared_ptr<void>> held;
  const auto take = [&](auto*& address, std::uint64_t bytes, std::size_t alignment) {
    std::byte* reached = nullptr;
    if (bytes == 0) return true;
    if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) return false;
    if (reach(address, bytes, &reached, held.emplace_back()) != Error::ok) return false;
    address = reinterpret_cast<std::remove_reference_t<decltype(address)>>(reached);
    return true;
  };
  const std::uint64_t terms = given.results * given.terms_count;
  const bool good = given.row_bytes % given.width == 0 && take(call.target, given.results * given.row_bytes, given.width) &&
                    take(call.terms, terms * sizeof(Term), alignof(Term));
  if (!good) return Error::illegal_address;
  std::vector<Term> reached(call.terms, call.terms + terms);
  for (Term& term : reached) {
    if (term.row != nullptr && !take(term.row, given.row_bytes, given.width)) return Error::illegal_address;
  }
  call.terms = reached.data();
  run_grid(groups, [&] { row.kernel(call); });
  return Error::ok;
}

}  // namespace

Error prepare_weighted_sum(const std::string& name, const Launch& launch, std::function<Error()>& work) {
  for (const Row& row : rows) {
    if (row.name != name) continue;
    Call call;
    std::memcpy(&call, launch.arguments[0], sizeof call);
    const bool fits = call.terms_count > 0 && call.row_bytes > 0 && call.row_bytes % row.element == 0 &&
                      (call.width == 1 || call.width == row.element || call.width == hmc_reduce_kernel::pack_bytes);
    if (!fits) return Error::invalid_value;
    work = [&row, call, groups = launch.groups] { return run(row, call, groups); };
    return Error::ok;
  }
  return Error::not_found;
}

}  // namespace hmc::sim
