#include "hmc/weighted_sum.h"

#include <algorithm>
#include <array>
#include <string>

#include "layout/tile.h"

namespace hmc {
namespace {

constexpr std::size_t chunk = 1024;  // columns whose sums stay in the first-level cache

}  // namespace

Status weighted_sum(std::span<std::byte> out, std::span<const std::byte> rows, std::span<const float> weights, std::size_t terms,
                    DataType type) {
  const std::size_t element = size_of(type);
  if (!is_floating(type) || element > sizeof(float))
    return {Code::invalid_argument, "weighted_sum of " + std::string(name_of(type)) + ": pass a floating type of at most 32 bits"};
  if (terms == 0 && weights.empty() && rows.empty()) {
    std::ranges::fill(out, std::byte{0});
    return {};
  }
  const std::size_t results = terms == 0 ? 0 : weights.size() / terms;
  const std::size_t row = results == 0 ? 0 : out.size() / results;
  if (terms == 0 || results * terms != weights.size() || results * row != out.size() || row % element != 0 ||
      rows.size() != weights.size() * row) {
    return {Code::invalid_argument, "weighted_sum: " + std::to_string(weights.size()) + " weights in terms of " +
                                        std::to_string(terms) + " do not fit " + std::to_string(rows.size()) +
                                        " bytes of rows and " + std::to_string(out.size()) + " bytes of results"};
  }
  const TileKernels& kernels = tile_kernels();
  alignas(64) std::array<float, chunk> sums;
  for (std::size_t t = 0; t < results; ++t) {
    for (std::size_t at = 0; at < row; at += chunk * element) {
      const std::size_t columns = std::min(chunk, (row - at) / element);
      std::fill_n(sums.begin(), columns, 0.0F);
      for (std::size_t k = t * terms; k < (t + 1) * terms; ++k)
        kernels.add_weighted(sums.data(), rows.data() + k * row + at, type, columns, weights[k]);
      kernels.cast(out.data() + t * row + at, type, reinterpret_cast<const std::byte*>(sums.data()), DataType::f32, columns, 1);
    }
  }
  return {};
}

}  // namespace hmc
