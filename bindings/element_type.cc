#include "element_type.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hmc::bindings {
namespace {

// Names of NumPy, ml_dtypes and torch beside HMC's own.
constexpr std::array<std::pair<std::string_view, DataType>, 15> element_names{{
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

// HMC's own names but for those that NumPy gives to 64 bits.
std::optional<DataType> own_name(const std::string& name) {
  if (name == "i8" || name == "u8") {
    throw py::type_error("dtype \"" + name +
                         "\" is 8 bits here and 64 bits in NumPy; say \"int8\" or \"int64\", \"uint8\" or \"uint64\"");
  }
  return data_type(name);
}

std::optional<DataType> known_type(const std::string& name) {
  for (const auto& [known, type] : element_names) {
    if (known == name) return type;
  }
  return std::nullopt;
}

// The element types of dtype objects met before. Reading one takes microseconds: NumPy composes its name in Python. GIL held.
class KnownTypes {
 public:
  [[nodiscard]] std::optional<DataType> find(py::handle dtype) const noexcept {
    for (std::size_t i = 0; i < std::min(added_, known_.size()); ++i) {
      if (known_[i].dtype == dtype.ptr()) return known_[i].type;
    }
    return std::nullopt;
  }
  // The reference keeps another object from taking the address.
  void add(py::handle dtype, DataType type) {
    Known& entry = known_[added_++ % known_.size()];
    py::handle(std::exchange(entry.dtype, dtype.inc_ref().ptr())).dec_ref();
    entry.type = type;
  }

 private:
  struct Known {
    PyObject* dtype = nullptr;
    DataType type = DataType::f32;
  };
  std::array<Known, 16> known_;
  std::size_t added_ = 0;
};

// As a NumPy dtype, a torch.dtype, a name or a type says it.
std::optional<DataType> read_type(py::handle dtype) {
  std::string text = written(dtype);
  if (text.starts_with("torch.")) return known_type(text.substr(6));
  if (py::isinstance<py::str>(dtype)) {
    if (const auto type = known_type(text)) return type;
    if (const auto type = own_name(text)) return type;
  }
  py::object numpy;
  try {
    numpy = py::module_::import("numpy").attr("dtype")(dtype);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_UnicodeError)) throw;
    throw py::type_error("dtype: " + written(error.value()));
  }
  if (!numpy.attr("isnative").cast<bool>())
    throw py::type_error("arrays of another byte order cannot be reduced; convert them before");
  return known_type(numpy.attr("name").cast<std::string>());
}

std::optional<DataType> type_named(py::handle dtype) {
  static KnownTypes known;  // its references are never dropped: the interpreter may have ended before
  if (const auto type = known.find(dtype)) return type;
  const auto type = read_type(dtype);
  const bool immutable = py::isinstance<py::dtype>(dtype) || std::string_view(Py_TYPE(dtype.ptr())->tp_name) == "torch.dtype";
  if (type && immutable) known.add(dtype, *type);
  return type;
}

// array.dtype, or None. Of a NumPy array by its C struct: three look-ups of an attribute cost as much as a small reduction.
py::object dtype_of(py::handle array) {
  if (Py_TYPE(array.ptr()) == py::detail::npy_api::get().PyArray_Type_)
    return py::reinterpret_borrow<py::object>(py::detail::array_proxy(array.ptr())->descr);
  static PyObject* const name = PyUnicode_InternFromString("dtype");
  PyObject* const found = in_interpreter([&] { return PyObject_GetAttr(array.ptr(), name); });
  if (found == nullptr) PyErr_Clear();
  return found != nullptr ? py::reinterpret_steal<py::object>(found) : py::none();
}

}  // namespace

DataType element_type_of(py::handle array, py::handle dtype) {
  const bool given = dtype && !dtype.is_none();
  const py::object asked = given ? py::reinterpret_borrow<py::object>(dtype) : dtype_of(array);
  if (!given && asked.is_none()) {
    throw py::type_error(std::string("a ") + Py_TYPE(array.ptr())->tp_name +
                         " has no element type; name it, as in dtype=\"float32\"");
  }
  if (const auto type = type_named(asked)) return *type;
  throw py::type_error("elements of type " + written(asked) +
                       " cannot be reduced; float64 to float8, and integers of 8 to 64 bits can");
}

Reduction reduction_of(py::handle out, py::handle inp, std::string_view op, py::handle factor, py::handle dtype) {
  const auto operation = reduce_op(op == "prod" ? "product" : op);
  if (!operation) {
    refuse("op \"" + std::string(op) + "\" is unknown; there are sum, product, min, max, avg, band, bor, bxor and premul_sum");
  }
  const bool scaled = factor && !factor.is_none();
  if (scaled != (*operation == ReduceOp::premul_sum)) refuse("factor= belongs to op=\"premul_sum\", and that needs it");
  const DataType type = element_type_of(inp, dtype);
  const bool given = dtype && !dtype.is_none();
  for (const py::handle each : {out, inp}) {
    if (each.is_none() || (!given && each.is(inp))) continue;
    const py::object own = dtype_of(each);
    if (own.is_none() || element_type_of(each, own) == type) continue;
    throw py::type_error("out, inp and dtype= are of different types; one of them is not " + std::string(name_of(type)));
  }
  return {type, *operation, scaled ? number_of(factor, "factor") : 1.0};
}

}  // namespace hmc::bindings
