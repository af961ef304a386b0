#include "hmc/weighted_sum.h"

#include <algorithm>
#include <string>
#include <vector>

#include "device/runtime.h"
#include "layout/on_device.h"
#include "layout/tile.h"

namespace hmc {
namespace {

struct Sum {
  std::span<std::byte> out;
  std::span<const std::byte> rows;
  std::span<const float> weights;
  std::span<const std::uint8_t> used;
  std::size_t terms, results;
  DataType type;

  [[nodiscard]] std::size_t row_bytes() const { return out.size() / results; }
  [[nodiscard]] bool uses(std::size_t term) const { return used.empty() || used[term] != 0; }
};

Status check_type(DataType type) {
  if (is_floating(type) && size_of(type) <= sizeof(float)) return {};
  return {Code::invalid_argument, "weighted_sum of " + std::string(name_of(type)) + ": pass a floating type of at most 32 bits"};
}

Status check_sizes(const Sum& sum) {
  const std::size_t row = sum.results == 0 ? 0 : sum.row_bytes();
  if (sum.terms == 0 || sum.results * sum.terms != sum.weights.size() || sum.results * row != sum.out.size() ||
      row % size_of(sum.type) != 0 || sum.rows.size() != sum.weights.size() * row) {
    return {Code::invalid_argument, "weighted_sum: " + std::to_string(sum.weights.size()) + " weights in terms of " +
                                        std::to_string(sum.terms) + " do not fit " + std::to_string(sum.rows.size()) +
                                        " bytes of rows and " + std::to_string(sum.out.size()) + " bytes of results"};
  }
  if (sum.used.empty() || sum.used.size() == sum.weights.size()) return {};
  return {Code::invalid_argument, "weighted_sum: " + std::to_string(sum.used.size()) + " marks of used terms for " +
                                      std::to_string(sum.weights.size()) + " weights; pass one for each, or none"};
}

void on_cpu(const Sum& sum) {
  const TileKernels& kernels = tile_kernels();
  const std::size_t row = sum.row_bytes();
  std::vector<WeightedRow> rows;
  rows.reserve(sum.terms);
  for (std::size_t t = 0; t < sum.results; ++t) {
    rows.clear();
    for (std::size_t k = t * sum.terms; k < (t + 1) * sum.terms; ++k) {
      if (sum.uses(k)) rows.push_back({sum.rows.data() + k * row, sum.weights[k]});
    }
    kernels.weighted_sum(sum.out.data() + t * row, sum.type, rows.data(), rows.size(), row / size_of(sum.type));
  }
}

Status clear(std::span<std::byte> out) {
  if (out.empty()) return {};
  HMC_ASSIGN(const Device device, device_of({}, {{out}}));
  if (device.is_cpu()) {
    std::ranges::fill(out, std::byte{0});
    return {};
  }
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  return runtime->compute().fill({out.data(), out.size(), device}, 0);
}

Status on_device(const Device& device, const Sum& sum) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  std::vector<WeightedTerm> terms(sum.weights.size());
  for (std::size_t i = 0; i < terms.size(); ++i) terms[i] = {sum.weights[i], sum.uses(i) ? 1U : 0U};
  return runtime->compute().weighted_sum({.target = {sum.out.data(), sum.out.size(), device},
                                          .rows = sum.rows.data(),
                                          .terms = terms,
                                          .results = sum.results,
                                          .type = sum.type});
}

}  // namespace

Status weighted_sum(std::span<std::byte> out, std::span<const std::byte> rows, std::span<const float> weights, std::size_t terms,
                    DataType type, std::span<const std::uint8_t> used) {
  HMC_TRY(check_type(type));
  if (terms == 0 && weights.empty() && rows.empty() && used.empty()) return clear(out);
  const Sum sum{out, rows, weights, used, terms, terms == 0 ? 0 : weights.size() / terms, type};
  HMC_TRY(check_sizes(sum));
  if (out.empty()) return {};
  HMC_ASSIGN(const Device device, device_of({{rows}}, {{out}}));
  if (!device.is_cpu()) return on_device(device, sum);
  on_cpu(sum);
  return {};
}

Result<bool> prepare_weighted_sum(const Device& device, DataType type) {
  HMC_TRY(check_type(type));
  if (device.is_cpu()) return true;
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  return runtime->compute().prepare_weighted_sum(device.index(), type);
}

}  // namespace hmc
