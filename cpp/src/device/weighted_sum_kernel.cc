#include "device/weighted_sum_kernel.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace hmc {
namespace {

constexpr unsigned threads = 256;
constexpr std::size_t groups_per_processor = 8;
constexpr std::size_t pack_bytes = 16;  // that a thread adds up at a time

// As in kernels/weighted_sum.cu.
struct Call {
  void* target;
  const void* terms;
  unsigned long long results;
  unsigned long long row_bytes;
  unsigned terms_count;
  unsigned width;
};

unsigned width_of(const VendorWeightedSum& sum) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(sum.target) | sum.row_bits | sum.row_bytes;
  if (bits % pack_bytes == 0) return pack_bytes;
  const std::size_t element = size_of(sum.type);
  return bits % element == 0 ? static_cast<unsigned>(element) : 1;
}

}  // namespace

std::string name_of_weighted_sum_kernel(DataType type) { return "hmc_weighted_sum_" + std::string(name_of(type)); }

kernel::Loaded WeightedSumKernel::kernel_of(int device, DataType type) {
  return kernels_.find(device, type, [&](kernel::Loaded& loaded) {
    loaded.load(api_, vendor_, [&](int on) { return image_(on, type); }, device, name_of_weighted_sum_kernel(type).c_str());
  });
}

int WeightedSumKernel::prepare(int index, DataType type) { return kernel_of(index, type).code; }

int WeightedSumKernel::run(int index, const VendorWeightedSum& sum, VendorStream stream) {
  const kernel::Loaded kernel = kernel_of(index, sum.type);
  if (kernel.code != 0) return kernel.code;
  Call call{.target = sum.target,
            .terms = sum.terms,
            .results = sum.results,
            .row_bytes = sum.row_bytes,
            .terms_count = static_cast<unsigned>(sum.terms_count),
            .width = width_of(sum)};
  void* arguments[] = {&call};
  const std::size_t packs = sum.results * ((sum.row_bytes + pack_bytes - 1) / pack_bytes);
  const std::size_t groups = std::clamp<std::size_t>((packs + threads - 1) / threads, 1, kernel.processors * groups_per_processor);
  return vendor_.clear(
      api_.launch(kernel.function, static_cast<unsigned>(groups), 1, 1, threads, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace hmc
