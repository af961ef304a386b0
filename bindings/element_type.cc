#include "element_type.h"

#include <array>
#include <string>
#include <utility>

namespace hmc::bindings {
namespace {

// Names of NumPy, ml_dtypes and torch beside HMC's own.
constexpr std::array<std::pair<std::string_view, DataType>, 15> names{{
    {"float64", DataType::f64},
    {"float32", DataType::f32},
    {"float16", DataType::f16},
    {"bfloat16", DataType::bf16},
    {"float8_e4m3fn", DataType::f8_e4m3fn},
    {"float8_e4m3fnuz", DataType::f8_e4m3fnuz},
    {"float8_e5m2", DataType::f8_e5m2},
    {"int64", DataType::i64},
    {"int32", DataType::i32},
    {"int16", DataType::i16},
    {"int8", DataType::i8},
    {"uint64", DataType::u64},
    {"uint32", DataType::u32},
    {"uint16", DataType::u16},
    {"uint8", DataType::u8},
}};

std::string name_of_dtype(py::handle dtype) {
  if (py::isinstance<py::str>(dtype)) return dtype.cast<std::string>();
  if (py::hasattr(dtype, "isnative") && !dtype.attr("isnative").cast<bool>())
    throw py::type_error("arrays of another byte order cannot be reduced; convert them before");
  const py::object name = py::hasattr(dtype, "name") ? py::object(dtype.attr("name")) : py::object(py::str(dtype));
  std::string text = py::str(name).cast<std::string>();
  if (text.starts_with("torch.")) text.erase(0, 6);
  return text;
}

}  // namespace

DataType element_type_of(py::handle array, py::handle dtype) {
  const bool given = dtype && !dtype.is_none();
  if (!given && !py::hasattr(array, "dtype")) {
    throw py::type_error(std::string("a ") + Py_TYPE(array.ptr())->tp_name +
                         " has no element type; name it, as in dtype=\"float32\"");
  }
  const std::string name = name_of_dtype(given ? dtype : py::handle(array.attr("dtype")));
  for (const auto& [known, type] : names) {
    if (known == name) return type;
  }
  if (const auto type = data_type(name)) return *type;
  throw py::type_error("elements of type " + name + " cannot be reduced; float64 to float8, and integers of 8 to 64 bits can");
}

Reduction reduction_of(py::handle array, std::string_view op, py::handle factor, py::handle dtype) {
  const auto operation = reduce_op(op == "prod" ? "product" : op);
  if (!operation) {
    refuse("op \"" + std::string(op) + "\" is unknown; there are sum, product, min, max, avg, band, bor, bxor and premul_sum");
  }
  const bool scaled = factor && !factor.is_none();
  if (scaled != (*operation == ReduceOp::premul_sum)) refuse("factor= belongs to op=\"premul_sum\", and that needs it");
  return {element_type_of(array, dtype), *operation, scaled ? factor.cast<double>() : 1.0};
}

}  // namespace hmc::bindings
