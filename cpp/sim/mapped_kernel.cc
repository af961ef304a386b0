// The kernels that exchange with other devices: cpp/src/device/kernels/mapped.cu and what it needs, compiled for the host. Its
// blocks run one after the other, which is enough for it. Other devices run theirs meanwhile: each stream is a thread.
#include <algorithm>
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

#define HMC_MAPPED_RELAX() hmc::sim::relax()
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of the first source, which each kernel has
#endif
// Each stands behind the one before.
#include "../src/device/kernels/reduce.cu"
#define HMC_MAPPED_ALL
#include "../src/device/kernels/mapped_memory.cu"

#include "../src/device/kernels/mapped.cu"
#pragma GCC diagnostic pop

namespace hmc::sim {
namespace {

using Call = hmc_mapped_kernel::Call;

struct Row {
  std::string_view name;
  void (*kernel)(Call);
  std::size_t element;
};
#define HMC_ROW(type, bytes) {"hmc_mapped_" #type, hmc_mapped_##type, bytes}
constexpr std::array rows{Row HMC_ROW(f64, 8),       Row HMC_ROW(f32, 4),         Row HMC_ROW(f16, 2),     Row HMC_ROW(bf16, 2),
                          Row HMC_ROW(f8_e4m3fn, 1), Row HMC_ROW(f8_e4m3fnuz, 1), Row HMC_ROW(f8_e5m2, 1), Row HMC_ROW(i64, 8),
                          Row HMC_ROW(i32, 4),       Row HMC_ROW(i16, 2),         Row HMC_ROW(i8, 1),      Row HMC_ROW(u64, 8),
                          Row HMC_ROW(u32, 4),       Row HMC_ROW(u16, 2),         Row HMC_ROW(u8, 1)};

// A thread that leaves its memory faults, and so does one that is not aligned to what it moves at a time.
class Reached {
 public:
  template <class Byte>
  bool take(Byte*& address, std::uint64_t bytes, std::uint64_t alignment) {
    if (bytes == 0) return true;
    std::byte* found = nullptr;
    if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) return false;
    if (reach(address, bytes, &found, held_.emplace_back()) != Error::ok) return false;
    address = reinterpret_cast<Byte*>(found);
    return true;
  }

 private:
  std::vector<std::shared_ptr<void>> held_;
};

Error run(const Row& row, const Call& given, unsigned groups) {
  using namespace hmc_mapped_kernel;
  Call call = given;
  std::uint64_t read = call.own.bytes != 0 ? call.own.offset + call.own.bytes : 0;
  std::uint64_t written = call.keeps != 0 && call.own.bytes != 0 ? call.kept_at + call.own.bytes : 0;
  const auto reach_to = [](std::uint64_t& end, const Part& part) {
    if (part.bytes != 0) end = std::max<std::uint64_t>(end, part.offset + part.bytes);
  };
  for (unsigned r = 0; r < call.ranks; ++r) {
    reach_to(read, call.gives[r]);
    if (r != call.rank || call.sources == 0) reach_to(written, call.takes[r]);
  }
  const std::uint64_t segment = call.slots_at + std::uint64_t{2} * (call.ranks - 1) * most_blocks * slots_of_block * call.slot;
  Reached reached;
  bool good = reached.take(call.input, read, call.width) && reached.take(call.output, written, call.width) &&
              reached.take(call.ended, sizeof *call.ended, sizeof *call.ended);
  for (unsigned r = 0; r < call.ranks; ++r) good = good && reached.take(call.segments[r], segment, pack_bytes);
  if (!good) return Error::illegal_address;
  run_grid(groups, [&] { row.kernel(call); });
  return Error::ok;
}

}  // namespace

Error prepare_mapped(const std::string& name, const Launch& launch, std::function<Error()>& work) {
  for (const Row& row : rows) {
    if (row.name != name) continue;
    Call call;
    std::memcpy(&call, launch.arguments[0], sizeof call);
    const bool fits = call.ranks > 1 && call.ranks <= hmc_mapped_kernel::most_ranks && call.rank < call.ranks &&
                      launch.groups <= hmc_mapped_kernel::most_blocks && call.chunk <= call.slot &&
                      2 * call.lag <= hmc_mapped_kernel::slots_of_block && call.source + call.sources <= call.ranks &&
                      (call.width == 1 || call.width == row.element || call.width == hmc_reduce_kernel::pack_bytes);
    if (!fits) return Error::invalid_value;
    work = [&row, call, groups = launch.groups] { return run(row, call, groups); };
    return Error::ok;
  }
  return Error::not_found;
}

}  // namespace hmc::sim
