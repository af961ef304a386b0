// The kernels that reduce: cpp/src/device/kernels/reduce.cu itself, compiled for the host.
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "copies.h"
#include "device_code.h"
#include "kernels.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#define HMC_REDUCE_ALL
#include "../src/device/kernels/reduce.cu"
#pragma GCC diagnostic pop

namespace hmc::sim {
namespace {

using Call = hmc_reduce_kernel::Call;

struct Row {
  std::string_view name;
  void (*kernel)(Call);
  std::size_t element;
};
#define HMC_ROW(type, bytes) {"hmc_reduce_" #type, hmc_reduce_##type, bytes}
constexpr std::array rows{Row HMC_ROW(f64, 8),       Row HMC_ROW(f32, 4),         Row HMC_ROW(f16, 2),     Row HMC_ROW(bf16, 2),
                          Row HMC_ROW(f8_e4m3fn, 1), Row HMC_ROW(f8_e4m3fnuz, 1), Row HMC_ROW(f8_e5m2, 1), Row HMC_ROW(i64, 8),
                          Row HMC_ROW(i32, 4),       Row HMC_ROW(i16, 2),         Row HMC_ROW(i8, 1),      Row HMC_ROW(u64, 8),
                          Row HMC_ROW(u32, 4),       Row HMC_ROW(u16, 2),         Row HMC_ROW(u8, 1)};

// A thread that leaves its memory faults, and so does one that is not aligned to what it moves at a time.
Error run(const Row& row, const Call& given, unsigned groups) {
  Call call = given;
  const std::size_t bytes = given.count * row.element;
  std::vector<std::shared_ptr<void>> held(given.sources_count + 1);
  const auto take = [&](const void* address, std::shared_ptr<void>& hold) -> std::byte* {
    std::byte* reached = nullptr;
    if (reinterpret_cast<std::uintptr_t>(address) % given.width != 0) return nullptr;
    return reach(address, bytes, &reached, hold) == Error::ok ? reached : nullptr;
  };
  if (bytes == 0) return Error::ok;
  call.target = reinterpret_cast<char*>(take(given.target, held.back()));
  if (call.target == nullptr) return Error::illegal_address;
  for (unsigned s = 0; s < given.sources_count; ++s) {
    call.sources[s] = reinterpret_cast<const char*>(take(given.sources[s], held[s]));
    if (call.sources[s] == nullptr) return Error::illegal_address;
  }
  run_grid(groups, [&] { row.kernel(call); });
  return Error::ok;
}

}  // namespace

Error prepare_reduce(const std::string& name, const Launch& launch, std::function<Error()>& work) {
  for (const Row& row : rows) {
    if (row.name != name) continue;
    Call call;
    std::memcpy(&call, launch.arguments[0], sizeof call);
    const bool fits = call.sources_count > 0 && call.sources_count <= hmc_reduce_kernel::most_sources &&
                      (call.width == 1 || call.width == row.element || call.width == hmc_reduce_kernel::pack_bytes);
    if (!fits) return Error::invalid_value;
    work = [&row, call, groups = launch.groups] { return run(row, call, groups); };
    return Error::ok;
  }
  return Error::not_found;
}

void reduce_host(const std::string& type, void* target, const std::vector<const void*>& sources, std::size_t count, unsigned op,
                 unsigned divisor) {
  for (const Row& row : rows) {
    if (row.name != "hmc_reduce_" + type) continue;
    Call call{};
    call.target = static_cast<char*>(target);
    for (std::size_t s = 0; s < sources.size(); ++s) call.sources[s] = static_cast<const char*>(sources[s]);
    call.count = count;
    call.scale = 1;
    call.sources_count = static_cast<unsigned>(sources.size());
    call.divisor = divisor;
    call.op = op;
    const auto bits = reinterpret_cast<std::uintptr_t>(target);
    call.width = bits % hmc_reduce_kernel::pack_bytes == 0 ? hmc_reduce_kernel::pack_bytes : static_cast<unsigned>(row.element);
    run_grid(1, [&] { row.kernel(call); });
  }
}

}  // namespace hmc::sim
