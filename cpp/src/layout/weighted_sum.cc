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

std::size_t results_of(std::size_t weights, std::size_t terms) { return terms == 0 ? 0 : weights / terms; }

Status check_type(DataType type) {
  if (is_floating(type) && size_of(type) <= sizeof(float)) return {};
  return {Code::invalid_argument, "weighted_sum of " + std::string(name_of(type)) + ": pass a floating type of at most 32 bits"};
}

// Whether rows of `out` and the terms of each add up.
bool fits(std::span<const std::byte> out, std::size_t weights, std::size_t terms, DataType type) {
  const std::size_t results = results_of(weights, terms), row = results == 0 ? 0 : out.size() / results;
  return terms != 0 && results * terms == weights && results * row == out.size() && row % size_of(type) == 0;
}

Status check_sizes(const Sum& sum) {
  if (!fits(sum.out, sum.weights.size(), sum.terms, sum.type) ||
      sum.rows.size() != sum.weights.size() * (sum.results == 0 ? 0 : sum.row_bytes())) {
    return {Code::invalid_argument, "weighted_sum: " + std::to_string(sum.weights.size()) + " weights in terms of " +
                                        std::to_string(sum.terms) + " do not fit " + std::to_string(sum.rows.size()) +
                                        " bytes of rows and " + std::to_string(sum.out.size()) + " bytes of results"};
  }
  if (sum.used.empty() || sum.used.size() == sum.weights.size()) return {};
  return {Code::invalid_argument, "weighted_sum: " + std::to_string(sum.used.size()) + " marks of used terms for " +
                                      std::to_string(sum.weights.size()) + " weights; pass one for each, or none"};
}

// `row_at(k)`: where the row of a term begins, null where it is left out.
template <class RowAt>
void on_cpu(std::span<std::byte> out, std::span<const float> weights, std::size_t terms, DataType type, RowAt row_at) {
  const TileKernels& kernels = tile_kernels();
  const std::size_t results = results_of(weights.size(), terms), row = out.size() / results;
  std::vector<WeightedRow> rows;
  rows.reserve(terms);
  for (std::size_t t = 0; t < results; ++t) {
    rows.clear();
    for (std::size_t k = t * terms; k < (t + 1) * terms; ++k) {
      if (const std::byte* const at = row_at(k); at != nullptr) rows.push_back({at, weights[k]});
    }
    kernels.weighted_sum(out.data() + t * row, type, rows.data(), rows.size(), row / size_of(type));
  }
}

Status clear(std::span<std::byte> out, const Device& device) {
  if (out.empty()) return {};
  if (device.is_cpu()) {
    std::ranges::fill(out, std::byte{0});
    return {};
  }
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  return runtime->compute().fill({out.data(), out.size(), device}, 0);
}

// As on_cpu().
template <class RowAt>
Status on_device(const Device& device, std::span<std::byte> out, std::span<const float> weights, std::size_t terms, DataType type,
                 RowAt row_at) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  std::vector<WeightedTerm> all(weights.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {.row = row_at(i), .weight = weights[i]};
  return runtime->compute().weighted_sum(
      {.target = {out.data(), out.size(), device}, .terms = all, .results = results_of(weights.size(), terms), .type = type});
}

template <class RowAt>
Status compute(const Device& by, std::span<std::byte> out, std::span<const float> weights, std::size_t terms, DataType type,
               RowAt row_at) {
  if (!by.is_cpu()) return on_device(by, out, weights, terms, type, row_at);
  on_cpu(out, weights, terms, type, row_at);
  return {};
}

}  // namespace

Status weighted_sum(std::span<std::byte> out, std::span<const std::byte> rows, std::span<const float> weights, std::size_t terms,
                    DataType type, std::span<const std::uint8_t> used) {
  HMC_TRY(check_type(type));
  if (terms == 0 && weights.empty() && rows.empty() && used.empty()) {
    HMC_ASSIGN(const Device device, device_of({}, {{out}}));
    return clear(out, device);
  }
  const Sum sum{out, rows, weights, used, terms, results_of(weights.size(), terms), type};
  HMC_TRY(check_sizes(sum));
  if (out.empty()) return {};
  HMC_ASSIGN(const Device device, device_of({{rows}}, {{out}}));
  return compute(device, out, weights, terms, type,
                 [&](std::size_t term) { return sum.uses(term) ? rows.data() + term * sum.row_bytes() : nullptr; });
}

Status weighted_sum_of_rows(std::span<std::byte> out, std::span<const std::byte* const> rows, std::span<const float> weights,
                            std::size_t terms, DataType type, const Device& by) {
  HMC_TRY(check_type(type));
  const bool none = terms == 0 && weights.empty();
  if (rows.size() != weights.size() || !(none || fits(out, weights.size(), terms, type))) {
    return {Code::invalid_argument, "weighted_sum_of_rows: " + std::to_string(weights.size()) + " weights in terms of " +
                                        std::to_string(terms) + " do not fit " + std::to_string(rows.size()) + " rows and " +
                                        std::to_string(out.size()) + " bytes of results"};
  }
  if (none) return clear(out, by);
  if (out.empty()) return {};
  return compute(by, out, weights, terms, type, [&](std::size_t term) { return rows[term]; });
}

Result<bool> prepare_weighted_sum(const Device& device, DataType type) {
  HMC_TRY(check_type(type));
  if (device.is_cpu()) return true;
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  return runtime->compute().prepare_weighted_sum(device.index(), type);
}

}  // namespace hmc
