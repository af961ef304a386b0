#include "device/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <string>

#include "device/reduce_variants.h"

namespace hmc {
namespace {

struct TypeRow {
  std::string_view name;
  std::size_t bytes;
  bool floating;
};
constexpr std::array<TypeRow, data_types> types{{
    {"f64", 8, true},
    {"f32", 4, true},
    {"f16", 2, true},
    {"bf16", 2, true},
    {"f8_e4m3fn", 1, true},
    {"f8_e4m3fnuz", 1, true},
    {"f8_e5m2", 1, true},
    {"i64", 8, false},
    {"i32", 4, false},
    {"i16", 2, false},
    {"i8", 1, false},
    {"u64", 8, false},
    {"u32", 4, false},
    {"u16", 2, false},
    {"u8", 1, false},
}};
constexpr std::array<std::string_view, reduce_ops> operations{"sum",  "product", "min",  "max",       "avg",
                                                              "band", "bor",     "bxor", "premul_sum"};

const TypeRow& row(DataType type) noexcept { return types[static_cast<std::size_t>(type)]; }

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports() knows f16c.
bool has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

ReduceFunction fastest() noexcept {
  ReduceFunction found = nullptr;
  for (const ReduceVariant& variant : reduce_variants()) {
    if (variant.usable) found = variant.function;
  }
  return found;
}

}  // namespace

std::size_t size_of(DataType type) noexcept { return row(type).bytes; }
std::string_view name_of(DataType type) noexcept { return row(type).name; }
std::string_view name_of(ReduceOp op) noexcept { return operations[static_cast<std::size_t>(op)]; }
bool is_floating(DataType type) noexcept { return row(type).floating; }

std::optional<DataType> data_type(std::string_view name) noexcept {
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i].name == name) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

std::optional<ReduceOp> reduce_op(std::string_view name) noexcept {
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (operations[i] == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

Status check_reduction(const Reduction& reduction) {
  const DataType type = reduction.type;
  if (reduction.exact && reduction.op != ReduceOp::sum && reduction.op != ReduceOp::avg && reduction.op != ReduceOp::premul_sum) {
    return {Code::invalid_argument,
            "exact " + std::string(name_of(reduction.op)) + ": exact reductions are sum, avg and premul_sum"};
  }
  const bool bitwise = reduction.op == ReduceOp::band || reduction.op == ReduceOp::bor || reduction.op == ReduceOp::bxor;
  if (bitwise ? !is_floating(type) : reduction.op != ReduceOp::premul_sum || is_floating(type)) return {};
  return {Code::invalid_argument, std::string(name_of(reduction.op)) + " of " + std::string(name_of(type)) + ": it takes " +
                                      (bitwise ? "integers" : "floating types") + " only"};
}

std::span<const ReduceVariant> reduce_variants() noexcept {
#if defined(__x86_64__)
  static const std::array<ReduceVariant, 2> all{
      {{"baseline", reduce_baseline, true}, {"avx2", reduce_avx2, __builtin_cpu_supports("avx2") != 0 && has_f16c()}}};
#else
  static const std::array<ReduceVariant, 1> all{{{"baseline", reduce_baseline, true}}};
#endif
  return all;
}

void reduce_on_cpu(void* target, std::span<const void* const> sources, std::size_t count, const ReduceStep& step) noexcept {
  static const ReduceFunction run = fastest();
  run(target, sources.data(), sources.size(), count, step);
}

}  // namespace hmc
