#include "device/reduce_kernel.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace hmc {
namespace {

constexpr unsigned threads = 256;
constexpr std::size_t groups_per_processor = 8;
constexpr std::size_t pack_bytes = 16;  // that a thread reduces at a time

// As in kernels/reduce.cu.
struct Call {
  void* target;
  const void* sources[most_reduced_sources];
  unsigned long long count;
  double scale;
  unsigned sources_count;
  unsigned divisor;
  unsigned op;
  unsigned width;
};

unsigned width_of(const VendorReduction& reduction, std::size_t element) {
  auto bits = reinterpret_cast<std::uintptr_t>(reduction.target);
  for (const void* source : reduction.sources) bits |= reinterpret_cast<std::uintptr_t>(source);
  if (bits % pack_bytes == 0) return pack_bytes;
  return bits % element == 0 ? static_cast<unsigned>(element) : 1;
}

}  // namespace

std::string name_of_reduce_kernel(DataType type) { return "hmc_reduce_" + std::string(name_of(type)); }

kernel::Loaded ReduceKernel::kernel_of(int device, DataType type) {
  return kernels_.find(device, type, [&](kernel::Loaded& loaded) {
    loaded.load(api_, vendor_, [&](int on) { return image_(on, type); }, device, name_of_reduce_kernel(type).c_str());
  });
}

int ReduceKernel::prepare(int index, DataType type) { return kernel_of(index, type).code; }

int ReduceKernel::reduce(int index, const VendorReduction& reduction, VendorStream stream) {
  const ReduceStep& step = reduction.step;
  const kernel::Loaded kernel = kernel_of(index, step.type);
  if (kernel.code != 0) return kernel.code;
  if (reduction.sources.empty() || reduction.sources.size() > most_reduced_sources) return vendor_.unsupported;
  const std::size_t element = size_of(step.type);
  Call call{.target = reduction.target,
            .sources = {},
            .count = reduction.count,
            .scale = step.scale,
            .sources_count = static_cast<unsigned>(reduction.sources.size()),
            .divisor = step.divisor,
            .op = static_cast<unsigned>(step.op),
            .width = width_of(reduction, element)};
  std::ranges::copy(reduction.sources, call.sources);
  void* arguments[] = {&call};
  const std::size_t packs = (reduction.count * element + pack_bytes - 1) / pack_bytes;
  const std::size_t groups = std::clamp<std::size_t>((packs + threads - 1) / threads, 1, kernel.processors * groups_per_processor);
  return vendor_.clear(
      api_.launch(kernel.function, static_cast<unsigned>(groups), 1, 1, threads, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace hmc
