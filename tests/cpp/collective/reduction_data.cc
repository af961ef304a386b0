#include "collective/reduction_data.h"

#include <cstdint>

#include "device/reduce.h"

namespace hmc::testing {

namespace {

// The byte with the sign, or what it is of: the last of each element.
void mask_tops(Bytes& bytes, std::size_t each, std::byte keep, std::byte set) {
  for (std::size_t i = each - 1; i < bytes.size(); i += each) bytes[i] = (bytes[i] & keep) | set;
}

}  // namespace

// Bit patterns at random are mostly huge, tiny or NaN: they keep the sign and mantissa, and get an exponent near 1.
Bytes input(DataType type, std::size_t count, std::size_t rank) {
  const std::size_t each = size_of(type);
  Bytes made = pattern(count * each, rank * 31 + static_cast<std::size_t>(type));
  if (!is_floating(type)) return made;
  if (each >= 4) mask_tops(made, each, std::byte{0x80}, std::byte{0x3f});
  if (each == 2) mask_tops(made, each, std::byte{0x83}, std::byte{0x3c});
  if (each == 1) mask_tops(made, each, std::byte{0xb7}, std::byte{0});
  return made;
}

Bytes inexact_input(DataType type, std::size_t count, std::size_t source) {
  const std::size_t each = size_of(type);
  Bytes made = pattern(count * each, source * 31 + static_cast<std::size_t>(type));
  if (type == DataType::f16) {
    mask_tops(made, each, std::byte{0x8f}, std::byte{0x30});
  } else if (each == 1) {
    mask_tops(made, each, std::byte{0xbf}, std::byte{0});
  } else {
    mask_tops(made, each, std::byte{0x81}, std::byte{0x3e});
  }
  return made;
}

Bytes reduced(const Reduction& reduction, const std::vector<Bytes>& inputs) {
  std::vector<const void*> sources;
  for (const Bytes& each : inputs) sources.push_back(each.data());
  ReduceStep step{.type = reduction.type, .op = reduction.op, .exact = reduction.exact};
  if (reduction.op == ReduceOp::premul_sum) step.scale = reduction.factor;
  if (reduction.op == ReduceOp::avg) step.divisor = static_cast<std::uint32_t>(inputs.size());
  Bytes result(inputs.empty() ? 0 : inputs.front().size());
  reduce_on_cpu(result.data(), sources, result.size() / size_of(reduction.type), step);
  return result;
}

Bytes expected(const Reduction& reduction, std::size_t count, std::size_t ranks) {
  std::vector<Bytes> inputs;
  for (std::size_t rank = 0; rank < ranks; ++rank) inputs.push_back(input(reduction.type, count, rank));
  return reduced(reduction, inputs);
}

}  // namespace hmc::testing
